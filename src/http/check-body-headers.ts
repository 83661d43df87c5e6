// What the headers say of a body is judged before the body is read: a body that would only be misread is a 415
// that says how to send it.
import type { IncomingHttpHeaders } from 'node:http'
import { Refusal } from '../domain/errors.ts'

const UTF_8 = ['utf-8', 'utf8', 'us-ascii']

/** `form`: the endpoint takes `multipart/form-data`, not JSON. Throws unsupported_media_type. */
export function checkBodyHeaders(headers: IncomingHttpHeaders, form: boolean): void {
  const encoding = headers['content-encoding']?.trim().toLowerCase() ?? ''
  if (encoding !== '' && encoding !== 'identity')
    refuse(`The body is compressed (\`Content-Encoding: ${shown(encoding)}\`). Send it as it is.`)
  const [type = '', ...parameters] = (headers['content-type'] ?? '').split(';').map((part) => part.trim())
  const charset = parameters.find((parameter) => /^charset=/i.test(parameter))?.slice('charset='.length)
  if (charset !== undefined && !UTF_8.includes(charset.replaceAll('"', '').toLowerCase()))
    refuse(`The charset "${shown(charset)}" is not supported. Send the body as UTF-8.`)
  if (form && type.toLowerCase() !== 'multipart/form-data') {
    const sent = type === '' ? 'This body has no content type' : `This body is \`${shown(type)}\``
    refuse(
      `${sent}. Send the JSONL as a file of a form, \`multipart/form-data\`: curl -F purpose=batch -F file=@requests.jsonl`,
    )
  }
}

function refuse(message: string): never {
  throw new Refusal('unsupported_media_type', message)
}

function shown(text: string): string {
  return text.slice(0, 60)
}
