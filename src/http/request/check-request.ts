// Checks the parts of a request before its handler runs: the content headers before the body is read, the JSON, and
// each part against its TypeBox shape. Unknown parameters and fields are rejected, and no value is coerced, except
// whole numbers in a query, which arrive as text.
import type { IncomingHttpHeaders } from 'node:http'
import type { Readable } from 'node:stream'
import type { FastifyRequest, FastifySchemaCompiler } from 'fastify'
import { IsSchema, type TSchema } from 'typebox'
import { Compile, type Validator } from 'typebox/compile'
import type { TLocalizedValidationError } from 'typebox/error'
import { ApiError, invalidParam } from '../../domain/errors.ts'
import { compressionOf } from '../../domain/file.ts'
import { readWhole } from '../../domain/gathered-bytes.ts'
import { shortened, storableText, unstorable } from '../../domain/text.ts'
import { takeBody, takeInlineLines } from '../../intake/inline-lines.ts'
import { withoutByteOrderMark } from '../../jsonl/byte-lines.ts'
import { DEPTH_MAX } from '../../jsonl/json-scan.ts'

// A body that cannot be read correctly gets a 415 that says how to send it.

/** The longest body in bytes that counts as empty: `{}`, `null` or blanks. */
const EMPTY_BODY_BYTES = 4
/** The largest JSON body in bytes; uploads, and lines with a batch, have their own limits. */
export const JSON_BYTES_MAX = 1024 * 1024
const UNKNOWN_LENGTH =
  'The request body is larger than 1 MiB, and its length was not announced. Send it with `Content-Length`.'
const UTF_8 = ['utf-8', 'utf8', 'us-ascii']

/** Checks the content headers. `form`: the body must be a form, not JSON. Throws unsupported_media_type. */
export function checkBodyHeaders(headers: IncomingHttpHeaders, form: boolean): void {
  const encoding = headers['content-encoding']?.trim().toLowerCase() ?? ''
  const accepted = form ? ['', 'identity', 'gzip', 'zstd'] : ['', 'identity']
  if (!accepted.includes(encoding)) {
    const advice = form ? 'Send it as it is, or as `gzip` or `zstd`.' : 'Send it as it is.'
    refuseMedia(`The body is compressed (\`Content-Encoding: ${clipped(encoding)}\`). ${advice}`)
  }
  const transfer = headers['transfer-encoding']?.trim().toLowerCase() ?? 'chunked'
  if (transfer !== 'chunked')
    refuseMedia(
      `The transfer encoding "${clipped(transfer)}" is not supported. Send the body \`chunked\`, or with its length.`,
    )
  const [type = '', ...parameters] = (headers['content-type'] ?? '').split(';').map((part) => part.trim())
  for (const parameter of parameters) {
    const charset = /^charset\s*=\s*(.*)/i.exec(parameter)?.[1]
    if (charset !== undefined && !UTF_8.includes(charset.replaceAll('"', '').toLowerCase()))
      refuseMedia(`The charset "${clipped(charset)}" is not supported. Send the body as UTF-8.`)
  }
  const isForm = type.toLowerCase() === 'multipart/form-data'
  // The parser of forms would consume the body.
  if (isForm && !form)
    refuseMedia('This body is `multipart/form-data`. Send it as JSON, with `Content-Type: application/json`.')
  if (form && !isForm) {
    const sent = type === '' ? 'This body has no content type' : `This body is \`${clipped(type)}\``
    refuseMedia(
      `${sent}. Send the JSONL as a file of a form, \`multipart/form-data\`: curl -F purpose=batch -F file=@requests.jsonl`,
    )
  }
}

/**
 * Checks a call of an endpoint without a body, to which some clients send an empty one. `body` is the parsed body; with
 * GET it is not read. Throws invalid_request.
 */
export function checkNoBody({ 'content-length': length }: IncomingHttpHeaders, body: unknown): void {
  const [field] = typeof body === 'object' && body !== null ? Object.keys(body) : []
  if (field !== undefined)
    throw invalidParam(clipped(field), `\`${clipped(field)}\` is no field here. This endpoint takes no body.`)
  if ((body ?? null) !== null && typeof body !== 'object')
    throw new ApiError('invalid_request', 'This endpoint takes no body.')
  if (body === undefined && Number(length ?? 0) > EMPTY_BODY_BYTES)
    throw new ApiError('invalid_request', 'This endpoint takes no body. Pass parameters in the query.')
}

function refuseMedia(message: string): never {
  throw new ApiError('unsupported_media_type', message)
}

function clipped(text: string): string {
  return text.slice(0, 60)
}

// Reads and parses the JSON body of a request. An empty body counts as no body, because clients send the content type all the
// same; the endpoint's shape says whether a body is required. An endpoint may ask for the bytes instead.

const utf8 = new TextDecoder('utf-8', { fatal: true })

/** Reads JSON. Throws payload_too_large above the endpoint's limit, and for more than 1 MiB of unknown length. */
export async function readJson(request: FastifyRequest, body: Readable): Promise<unknown> {
  const { bodyLimit, config } = request.routeOptions
  const { declared } = config
  const length = request.headers['content-length']
  const bytesMax = length === undefined ? Math.min(JSON_BYTES_MAX, bodyLimit) : bodyLimit
  if (Number(length ?? 0) > bytesMax) throw new ApiError('payload_too_large')
  const { bytes, isWhole } = await readWhole(body, length === undefined ? bytesMax : Number(length))
  if (!isWhole) throw new ApiError('payload_too_large', bytesMax < bodyLimit ? UNKNOWN_LENGTH : undefined)
  if (declared?.raw) return bytes
  const content = withoutByteOrderMark(bytes)
  const compression = compressionOf(bytes)
  if (compression !== null)
    throw new ApiError('unsupported_media_type', `The body is compressed (${compression}). Send it as it is.`)
  let rest = content
  if (declared?.takesLines === true) ({ rest, lines: request.lines } = await takeInlineLines(content))
  else if (declared?.takesLines)
    ({ rest, body: request.bytesOfBody } = await takeBody(content, declared.takesLines))
  else return read(content)
  if (rest.length > JSON_BYTES_MAX) throw new ApiError('payload_too_large')
  return read(rest)
}

function read(bytes: Buffer): unknown {
  let text: string
  try {
    text = utf8.decode(bytes)
  } catch {
    throw new ApiError('invalid_json', 'The request body is not valid UTF-8.')
  }
  if (text.trim() === '') return undefined
  try {
    return JSON.parse(text)
  } catch (error) {
    const reason = error instanceof Error ? error.message : ''
    throw new ApiError('invalid_json', `The request body is not valid JSON: ${reason}.`)
  }
}

const NAME_CHARACTERS_MAX = 100
/** Names that other APIs use for the cursor of a page. */
const OFFSETS = ['offset', 'page', 'skip']

const WHOLE: Record<string, string> = {
  body: 'The request body',
  querystring: 'The query',
  params: 'The path',
  headers: 'The headers',
}

export const checkShape: FastifySchemaCompiler<unknown> = ({ schema, httpPart }) => {
  if (!IsSchema(schema)) throw new TypeError(`the ${httpPart} of an endpoint has no shape`)
  // Compiled when it is first needed: most of a hundred endpoints are never called.
  let compiled: Validator | null = null
  const known = httpPart === 'querystring' || httpPart === 'body' ? membersOf(schema) : null
  const integers = httpPart === 'querystring' ? integersOf(schema) : []
  return (given: unknown) => {
    if (httpPart === 'params') return { value: storablePath(given) }
    const value = integers.length > 0 ? withNumbers(given, integers) : given
    const fault = textFault(value, [])
    if (fault) return { error: fault }
    const unknown = known && unknownMember(value, known)
    if (known && unknown !== undefined && unknown !== null)
      return { error: refuseMember(unknown, known, httpPart === 'body' ? 'field' : 'parameter') }
    compiled ??= Compile(schema)
    if (compiled.Check(value)) return { value }
    return { error: describeMismatch(compiled.Errors(value), value, WHOLE[httpPart ?? ''] ?? 'It') }
  }
}

/** Replaces an ID that no database can store by an unknown one. */
function storablePath(params: unknown): unknown {
  if (typeof params !== 'object' || params === null) return params
  return Object.fromEntries(
    Object.entries(params).map(([name, value]) => [
      name,
      typeof value === 'string' ? storableText(value) : value,
    ]),
  )
}

/** The most fields in a body: checking takes much longer than reading, since shapes compare items. */
const FIELDS_MAX = 2_000
/** The most items in a body's lists: as many as the parts of an upload. */
const ITEMS_MAX = 10_000

/** The error for the first string or key that no database can store, for deep nesting, or for too many members. */
function textFault(value: unknown, path: readonly string[], seen = { fields: 0, items: 0 }): ApiError | null {
  if (typeof value === 'string') {
    const why = unstorable(value)
    if (why === null) return null
    const param = path.join('.')
    return invalidParam(param, `\`${param}\` ${why}.`)
  }
  if (typeof value !== 'object' || value === null) return null
  if (path.length >= DEPTH_MAX)
    return new ApiError('invalid_request', `The request body nests deeper than ${DEPTH_MAX} levels.`)
  const members = Object.entries(value)
  seen[Array.isArray(value) ? 'items' : 'fields'] += members.length
  if (seen.fields > FIELDS_MAX || seen.items > ITEMS_MAX) {
    const message = `The request body has more than ${FIELDS_MAX} fields or ${ITEMS_MAX} items.`
    return new ApiError('invalid_request', message)
  }
  for (const [key, member] of members) {
    const why = unstorable(key)
    if (why !== null) {
      const param = path.length === 0 ? storableText(key) : path.join('.')
      return invalidParam(param, `The key ${JSON.stringify(key)} ${why}.`)
    }
    const fault = textFault(member, [...path, key], seen)
    if (fault) return fault
  }
  return null
}

/** The properties of a shape that is an object, or an object or null; else null. */
function membersOf(schema: TSchema): readonly string[] | null {
  if (Reflect.get(schema, 'additionalProperties') === true) return null
  const parts: unknown = Reflect.get(schema, 'anyOf')
  const shapes = Array.isArray(parts)
    ? parts.filter((part) => Reflect.get(part, 'type') !== 'null')
    : [schema]
  const properties: unknown = shapes.length === 1 ? Reflect.get(shapes[0], 'properties') : null
  return typeof properties === 'object' && properties !== null ? Object.keys(properties) : null
}

function unknownMember(value: unknown, known: readonly string[]): string | undefined {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return undefined
  return Object.keys(value).find((name) => !known.includes(name))
}

function refuseMember(name: string, known: readonly string[], kind: 'field' | 'parameter'): ApiError {
  const param = shortened(name, NAME_CHARACTERS_MAX)
  const where = kind === 'field' ? 'The request body' : 'This endpoint'
  const list = known.map((one) => `\`${one}\``).join(', ')
  const takes = known.length === 0 ? `takes no ${kind}s` : `takes ${list}`
  const hint = OFFSETS.includes(name)
    ? ' Pages go on behind an object: pass `next_cursor` as `starting_after`.'
    : ''
  return invalidParam(param, `\`${param}\` is no ${kind} here. ${where} ${takes}.${hint}`)
}

function integersOf(schema: TSchema): string[] {
  const properties: unknown = Reflect.get(schema, 'properties')
  if (typeof properties !== 'object' || properties === null) return []
  return Object.entries(properties).flatMap(([name, property]) =>
    Reflect.get(Object(property), 'type') === 'integer' ? [name] : [],
  )
}

function withNumbers(query: unknown, integers: readonly string[]): unknown {
  if (typeof query !== 'object' || query === null) return query
  const entries = Object.entries(query).map(([name, value]) => {
    const isNumber = integers.includes(name) && typeof value === 'string' && /^-?\d{1,300}$/.test(value)
    return [name, isNumber ? Number(value) : value]
  })
  return Object.fromEntries(entries)
}

// Describes in one sentence what a request should have contained and what it contained instead.

/** Keywords whose validation errors only wrap a more precise error. */
const WRAPPERS = ['additionalProperties', 'propertyNames', 'anyOf']
const SHOWN_CHARACTERS_MAX = 60

/** Describes the first error. `whole` names the checked value: "The request body". */
function describeMismatch(
  errors: readonly TLocalizedValidationError[],
  value: unknown,
  whole: string,
): ApiError {
  const telling = errors.filter(({ keyword }) => !WRAPPERS.includes(keyword))
  // "Must be null" says less than another error of a value that may be null.
  const beyondNull = telling.find(({ keyword, params }) => keyword !== 'type' || params.type !== 'null')
  const error = beyondNull ?? telling[0] ?? errors[0]
  if (!error) return new ApiError('invalid_request')
  if (error.keyword === 'required') {
    const missing = error.params.requiredProperties[0] ?? ''
    const param = [...path(error.instancePath), missing].join('.')
    return invalidParam(param, `\`${param}\` is required.`)
  }
  const steps = path(error.instancePath)
  const siblings = telling.filter((other) => other.instancePath === error.instancePath)
  const found = at(value, steps)
  if (steps.length === 0) {
    const what = found === null || found === undefined ? 'it is empty' : `it is ${shown(found)}`
    return new ApiError('invalid_request', `${whole} must be a JSON object; ${what}.`)
  }
  const param = steps.join('.')
  if (error.keyword === 'boolean') return invalidParam(param, `\`${param}\` is no field here.`)
  const isKey = error.schemaPath.endsWith('/propertyNames')
  const subject = isKey ? `The key \`${param}\`` : `\`${param}\``
  const got = isKey || (typeof found === 'object' && error.keyword !== 'type') ? '' : `, not ${shown(found)}`
  return invalidParam(param, `${subject} must ${expectation(siblings, error)}${got}.`)
}

function expectation(
  siblings: readonly TLocalizedValidationError[],
  error: TLocalizedValidationError,
): string {
  const constants = siblings.flatMap((other) =>
    other.keyword === 'const' ? [JSON.stringify(other.params.allowedValue)] : [],
  )
  if (constants.length > 0) return `be ${constants.join(' or ')}`
  const types = siblings.flatMap((other) => (other.keyword === 'type' ? named(other.params.type) : []))
  if (error.keyword === 'type') return `be ${[...new Set(types)].join(' or ')}`
  switch (error.keyword) {
    case 'enum':
      return `be one of ${error.params.allowedValues.map((allowed) => JSON.stringify(allowed)).join(', ')}`
    case 'minimum':
      return `be at least ${error.params.limit}`
    case 'exclusiveMinimum':
      return `be above ${error.params.limit}`
    case 'uniqueItems':
      return 'hold each item once'
    case 'maximum':
      return `be at most ${error.params.limit}`
    default:
      return error.message.replace(/^must /, '')
  }
}

function named(type: string | string[]): string[] {
  const names: Record<string, string> = {
    string: 'a string',
    integer: 'a whole number',
    number: 'a number',
    boolean: 'true or false',
    object: 'an object',
    array: 'an array',
  }
  return [type].flat().map((name) => names[name] ?? name)
}

/** The steps of a JSON pointer (RFC 6901). */
function path(pointer: string): string[] {
  return pointer
    .split('/')
    .slice(1)
    .map((step) => step.replaceAll('~1', '/').replaceAll('~0', '~'))
}

function at(value: unknown, steps: readonly string[]): unknown {
  let here = value
  for (const step of steps) {
    if (typeof here !== 'object' || here === null) return undefined
    here = Reflect.get(here, step)
  }
  return here
}

function shown(value: unknown): string {
  if (value === undefined) return 'nothing'
  if (Array.isArray(value)) return 'an array'
  if (typeof value === 'object' && value !== null) return 'an object'
  const text = JSON.stringify(value) ?? typeof value
  const short = shortened(text, SHOWN_CHARACTERS_MAX)
  return typeof value === 'string' ? short : `the ${typeof value} ${short}`.replace('the object null', 'null')
}
