// Reads the lines of a batch from the array `requests` in the call that creates it. They become the lines of an input
// file: the bytes of a request are copied, and never parsed into objects. Line breaks within a request become blanks,
// because a line break ends a line.

import { isUtf8 } from 'node:buffer'
import { createHash } from 'node:crypto'
import type { BatchEndpoint } from '../domain/endpoint.ts'
import { ApiError, invalidParam } from '../domain/errors.ts'
import { inBlocks, LF, LINE_BREAK } from '../jsonl/byte-lines.ts'
import { DEPTH_MAX, JsonScanner, Names } from '../jsonl/json-scan.ts'

export const INLINE_LINES_MAX = 10_000
/** The limit of bytes of a call with requests in it. */
export const INLINE_BYTES_MAX = 32 * 1024 * 1024
/** Bytes that are scanned before other calls run, and bytes that are stored at once. */
const BLOCK_BYTES = 256 * 1024

const FIELD = new Names('requests')
const BODY = new Names('body')
const INPUT = new Names('input')
const FILLED_IN = new Names('custom_id', 'method', 'url')
const SPACE = 0x20

interface Request {
  start: number
  end: number
  /** The names of the request's fields that are in FILLED_IN; null if it is no object, which validation reports. */
  has: Set<string> | null
  isEmpty: boolean
}

export interface InlineLines {
  /** A lower bound of the file's bytes. */
  bytes: number
  /** The SHA-256 of the received array, hex. */
  sha256: string
  /** The content of the file, to be read once, which frees its memory. `endpoint` is that of requests without `url`. */
  content: (endpoint: BatchEndpoint) => AsyncGenerator<Buffer>
}

/**
 * Removes the elements of the array `requests` from `bytes`, the JSON of an object: `rest` has an empty array instead.
 * JSON without `requests` stays as it is. Throws invalid_json and invalid_request.
 */
export async function takeInlineLines(bytes: Buffer): Promise<{ rest: Buffer; lines: InlineLines | null }> {
  const { rest, taken } = await takeMember(bytes, FIELD, 'array', '[]', scanArray)
  return { rest, lines: taken }
}

/**
 * Takes the JSON that is sent on, byte for byte, out of the JSON of an object: its object `body` or, with `whole`, all of it. `rest`
 * has an empty object in place of `body`, or of `input`.
 */
export async function takeBody(
  bytes: Buffer,
  part: 'body' | 'whole',
): Promise<{ rest: Buffer; body: Buffer | null }> {
  const [names, kind] = part === 'body' ? ([BODY, 'object'] as const) : ([INPUT, null] as const)
  const { rest, taken } = await takeMember(bytes, names, kind, '{}', async (json) => {
    const start = json.at
    json.skipValue()
    const member = bytes.subarray(start, json.at)
    // The rest is decoded, and so checked, by the reader of the call.
    const param = part === 'body' ? 'body' : 'input'
    if (!isUtf8(member)) throw new ApiError('invalid_json', `\`${param}\` is not valid UTF-8.`, { param })
    return member
  })
  const body = part === 'whole' ? bytes : taken
  return { rest, body: body && withoutLineBreaks(body) }
}

async function takeMember<T>(
  bytes: Buffer,
  name: Names<string>,
  /** The kind of JSON that is removed; null: any. */
  kind: 'array' | 'object' | null,
  empty: string,
  take: (json: JsonScanner) => Promise<T>,
): Promise<{ rest: Buffer; taken: T | null }> {
  const json = new JsonScanner()
  json.open(bytes, 0, bytes.length)
  if (json.kind() !== 'object') return { rest: bytes, taken: null }
  const kept: Buffer[] = []
  let keptTo = 0
  let taken: T | null = null
  for (let more = json.beginObject(); more; more = json.nextMember()) {
    if (json.key(name) === null || (kind !== null && json.kind() !== kind)) {
      json.skipValue()
      continue
    }
    kept.push(bytes.subarray(keptTo, json.at), Buffer.from(empty))
    taken = await take(json)
    keptTo = json.at
  }
  json.finish()
  if (json.fault?.code === 'nesting_too_deep')
    throw new ApiError('invalid_request', `The request body nests deeper than ${DEPTH_MAX} levels.`)
  if (json.fault) {
    const { at, what } = json.fault
    throw new ApiError('invalid_json', `The request body is not valid JSON: at byte ${at + 1}: ${what}.`)
  }
  return { rest: taken === null ? bytes : Buffer.concat([...kept, bytes.subarray(keptTo)]), taken }
}

async function scanArray(json: JsonScanner): Promise<InlineLines> {
  const { bytes, at: begin } = json
  const requests: Request[] = []
  const hash = createHash('sha256')
  let hashedTo = begin
  for (let more = json.beginArray(); more; more = json.nextElement()) {
    if (requests.length === INLINE_LINES_MAX) throw notSoMany(`more than ${INLINE_LINES_MAX}`)
    requests.push(scanRequest(json))
    if (json.at - hashedTo < BLOCK_BYTES) continue
    hash.update(bytes.subarray(hashedTo, json.at))
    hashedTo = json.at
    await new Promise<void>((resolve) => setImmediate(resolve))
  }
  if (json.fault === null && requests.length === 0) throw notSoMany('none')
  hash.update(bytes.subarray(hashedTo, json.at))
  let unread = bytes
  return {
    bytes: json.at - begin,
    sha256: hash.digest('hex'),
    content(endpoint) {
      const content = inBlocks(linesOf(unread, requests, endpoint), BLOCK_BYTES)
      unread = Buffer.alloc(0)
      return content
    },
  }
}

function scanRequest(json: JsonScanner): Request {
  const start = json.at
  const has = json.kind() === 'object' ? new Set<string>() : null
  let isEmpty = true
  if (has === null) json.skipValue()
  else
    for (let more = json.beginObject(); more; more = json.nextMember()) {
      has.add(json.key(FILLED_IN) ?? '')
      isEmpty = false
      json.skipValue()
    }
  return { start, end: json.at, has, isEmpty }
}

function* linesOf(bytes: Buffer, requests: readonly Request[], endpoint: BatchEndpoint): Generator<Buffer[]> {
  for (const [i, { start, end, has, isEmpty }] of requests.entries()) {
    const request = withoutLineBreaks(bytes.subarray(start, end))
    const given = { custom_id: `request-${i + 1}`, method: 'POST', url: endpoint }
    const missing = Object.entries(given).filter(([name]) => has?.has(name) === false)
    const members = JSON.stringify(Object.fromEntries(missing)).slice(0, -1)
    if (missing.length === 0) yield [request, LINE_BREAK]
    else yield [Buffer.from(isEmpty ? members : `${members},`), request.subarray(1), LINE_BREAK]
  }
}

/** Replaces line breaks by blanks in place: JSON has them only between two tokens. */
export function withoutLineBreaks(json: Buffer): Buffer {
  for (let at = json.indexOf(LF); at !== -1; at = json.indexOf(LF, at + 1)) json[at] = SPACE
  return json
}

function notSoMany(found: string): ApiError {
  const message = `\`requests\` must hold 1 to ${INLINE_LINES_MAX} requests, not ${found}. A file may have more: upload it with POST /v1/files.`
  return invalidParam('requests', message)
}
