// Checks the content headers before a body is read. A body that cannot be read correctly gets a 415 that says how to
// send it.
import type { IncomingHttpHeaders } from 'node:http'
import type { FastifyRequest } from 'fastify'
import { ApiError } from '../../domain/errors.ts'
import { compressionOf } from '../../domain/file.ts'
import { takeInlineLines } from '../../intake/inline-lines.ts'

/** The length of `{}`, `null` or blanks. */
const EMPTY_BODY_BYTES = 4
/** JSON requests are small; uploads, and lines that come with a batch, have limits of their own. */
export const JSON_BYTES_MAX = 1024 * 1024
const UTF_8 = ['utf-8', 'utf8', 'us-ascii']

/** `form`: the endpoint takes `multipart/form-data`, not JSON. Throws unsupported_media_type. */
export function checkBodyHeaders(headers: IncomingHttpHeaders, form: boolean): void {
  const encoding = headers['content-encoding']?.trim().toLowerCase() ?? ''
  const accepted = form ? ['', 'identity', 'gzip', 'zstd'] : ['', 'identity']
  if (!accepted.includes(encoding)) {
    const advice = form ? 'Send it as it is, or as `gzip` or `zstd`.' : 'Send it as it is.'
    refuse(`The body is compressed (\`Content-Encoding: ${shown(encoding)}\`). ${advice}`)
  }
  const transfer = headers['transfer-encoding']?.trim().toLowerCase() ?? 'chunked'
  if (transfer !== 'chunked')
    refuse(
      `The transfer encoding "${shown(transfer)}" is not supported. Send the body \`chunked\`, or with its length.`,
    )
  const [type = '', ...parameters] = (headers['content-type'] ?? '').split(';').map((part) => part.trim())
  for (const parameter of parameters) {
    const charset = /^charset\s*=\s*(.*)/i.exec(parameter)?.[1]
    if (charset !== undefined && !UTF_8.includes(charset.replaceAll('"', '').toLowerCase()))
      refuse(`The charset "${shown(charset)}" is not supported. Send the body as UTF-8.`)
  }
  if (form && type.toLowerCase() !== 'multipart/form-data') {
    const sent = type === '' ? 'This body has no content type' : `This body is \`${shown(type)}\``
    refuse(
      `${sent}. Send the JSONL as a file of a form, \`multipart/form-data\`: curl -F purpose=batch -F file=@requests.jsonl`,
    )
  }
}

/**
 * For endpoints that take no body, to which some clients send an empty one all the same. `body` is the parsed body;
 * with GET it is not read. Throws invalid_request.
 */
export function checkNoBody({ 'content-length': length }: IncomingHttpHeaders, body: unknown): void {
  const [field] = typeof body === 'object' && body !== null ? Object.keys(body) : []
  if (field !== undefined)
    throw new ApiError(
      'invalid_request',
      `\`${shown(field)}\` is no field here. This endpoint takes no body.`,
      {
        param: shown(field),
      },
    )
  if ((body ?? null) !== null && typeof body !== 'object')
    throw new ApiError('invalid_request', 'This endpoint takes no body.')
  if (body === undefined && Number(length ?? 0) > EMPTY_BODY_BYTES)
    throw new ApiError('invalid_request', 'This endpoint takes no body. Pass parameters in the query.')
}

function refuse(message: string): never {
  throw new ApiError('unsupported_media_type', message)
}

function shown(text: string): string {
  return text.slice(0, 60)
}

// Parses the JSON body of a request. An empty body counts as no body, because clients send the content type all the
// same; the endpoint's shape says whether a body is required. An endpoint may ask for the bytes instead.

const utf8 = new TextDecoder('utf-8', { fatal: true })

export async function parseJson(request: FastifyRequest, bytes: Buffer): Promise<unknown> {
  const { declared } = request.routeOptions.config
  if (declared?.raw) return bytes
  const compression = compressionOf(bytes)
  if (compression !== null)
    throw new ApiError('unsupported_media_type', `The body is compressed (${compression}). Send it as it is.`)
  if (!declared?.takesLines) return read(bytes)
  const { rest, lines } = await takeInlineLines(bytes)
  if (rest.length > JSON_BYTES_MAX) throw new ApiError('payload_too_large')
  request.lines = lines
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
