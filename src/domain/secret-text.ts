// The secrets that this service makes have a form of their own, so they are found in any text: an answer that is
// put on record, a path, the message of an error in a log. Whoever keeps such a text keeps it without them, and no
// endpoint has to remember that its answer holds one.

/** Stands where a secret was. */
export const SECRET_MARKER = '[secret]'

/** API keys (domain/api-key.ts) and the secrets that sign webhook requests (notify/signing.ts). */
const SECRETS = /opk_[a-z0-9-]+_[0-9a-z]{26}_[\w-]+|whsec_[A-Za-z0-9+/_-]{16,}={0,2}/g

/** JSON stays JSON: no secret has a character that JSON escapes. */
export function withoutSecrets(text: string): string {
  return text.includes('opk_') || text.includes('whsec_') ? text.replaceAll(SECRETS, SECRET_MARKER) : text
}
