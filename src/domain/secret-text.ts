// The secrets that this service generates have a distinctive form, so they can be found and removed in any text that
// is stored or logged: a response, a path, an error message.

/** Replaces a secret. */
export const SECRET_MARKER = '[secret]'

/**
 * API keys (domain/api-key.ts), tokens of the console (domain/console-token.ts) and the secrets that sign webhook
 * requests (notify/signing.ts).
 */
const SECRETS = /opk_[a-z0-9-]+_[0-9a-z]{26}_[\w-]+|opc_[\w-]{43}|whsec_[A-Za-z0-9+/_-]{16,}={0,2}/g

/** The result for JSON is JSON: no secret contains a character that JSON escapes. */
export function withoutSecrets(text: string): string {
  const mayHoldOne = text.includes('opk_') || text.includes('opc_') || text.includes('whsec_')
  return mayHoldOne ? text.replaceAll(SECRETS, SECRET_MARKER) : text
}
