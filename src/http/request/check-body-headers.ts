// Checks the content headers before a body is read. A body that cannot be read correctly gets a 415 that says how to
// send it.
import type { IncomingHttpHeaders } from 'node:http'
import { ApiError } from '../../domain/errors.ts'

/** The length of `{}`, `null` or blanks. */
const EMPTY_BODY_BYTES = 4
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
