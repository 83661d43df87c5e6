// The secrets that sign a browser in: `opc_` and 256 random bits. Only a hash is stored, as with API keys.
import { randomBytes } from 'node:crypto'
import { hashSecret } from './api-key.ts'

const FORM = /^opc_[\w-]{43}$/

export function makeConsoleToken(): { token: string; token_sha256: string } {
  const token = `opc_${randomBytes(32).toString('base64url')}`
  return { token, token_sha256: hashSecret(token) }
}

/** The hash to look up; null when `text` is no token. */
export function hashConsoleToken(text: string): string | null {
  return FORM.test(text) ? hashSecret(text) : null
}
