// Decodes header values as UTF-8; Node decodes them as Latin-1.
import { ApiError } from '../../domain/errors.ts'

const utf8 = new TextDecoder('utf-8', { fatal: true })

/** The value of a header that may be given once, with 1 to `charactersMax` characters; null when it is absent. */
export function headerText(
  headers: NodeJS.Dict<string | string[]>,
  name: string,
  charactersMax: number,
): string | null {
  const given = headers[name.toLowerCase()]
  if (given === undefined) return null
  const raw = Array.isArray(given) ? given.join(', ') : given
  const text = decoded(raw).trim()
  if (text.length === 0 || text.length > charactersMax) {
    const message = `The header ${name} must have 1 to ${charactersMax} characters, not ${text.length}.`
    throw new ApiError('invalid_request', message, { param: name })
  }
  return text
}

function decoded(raw: string): string {
  try {
    return utf8.decode(Buffer.from(raw, 'latin1'))
  } catch {
    return raw
  }
}
