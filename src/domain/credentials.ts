// Checks API keys, headers and certificates before they are sent. A message names the problem and its fix, and quotes
// nothing: a wrong file or variable may hold another secret.

import { isRecord, parsedJson } from './json-record.ts'

/** The name of a header in HTTP (RFC 9110, section 5.6.2). */
export const HEADER_NAME = /^[A-Za-z0-9!#$%&'*+.^_`|~-]+$/
/** Headers that frame a request or control its connection: the service sets them itself. */
export const OWN_HEADER = /^(connection|content-length|transfer-encoding)$/i

const KEY = /^[\x21-\x7e]+$/
/** A whole assignment, `NAME=value`, but not base64 that ends with its padding. */
const ASSIGNMENT = /^[A-Za-z_]\w*=[^=]/
/** The beginning of JSON or of a quoted key. */
const QUOTING = /^[{["']/

/** The reason for which `text` is no API key; null for a key. */
export function keyProblem(text: string): string | null {
  if (text === '') return 'is empty; expected the API key alone'
  if (!KEY.test(text))
    return 'holds more than one line, spaces, or other characters than printable ASCII; expected the API key alone, as UTF-8'
  if (ASSIGNMENT.test(text)) return 'holds NAME=value; expected the API key alone'
  return QUOTING.test(text) ? 'holds JSON or quotes; expected the API key alone' : null
}

/** The reason for which `text` is no set of public keys (JWKS); null for such a set. */
export function keySetProblem(text: string): string | null {
  const set = parsedJson(text.trim())
  const keys: readonly unknown[] | null = isRecord(set) && Array.isArray(set.keys) ? set.keys : null
  if (keys === null) return 'holds no JSON Web Key Set: {"keys": [...]}'
  if (keys.some((key) => isRecord(key) && typeof key.d === 'string'))
    return 'holds a private key; expected the public keys alone'
  return keys.some((key) => isRecord(key) && ['RSA', 'EC', 'OKP'].includes(String(key.kty)))
    ? null
    : 'holds no public key of type RSA, EC or OKP'
}

/** Certificates in PEM. `ca`: the authorities for a server's certificate; `cert` and `key`: the client's own. */
export interface Certificates {
  ca?: Buffer | undefined
  cert?: Buffer | undefined
  key?: Buffer | undefined
}

/** The absence of certificates: one object, so that comparing by identity shows no change. */
export const NO_CERTIFICATES: Certificates = {}

const PEM_CERTIFICATE =
  /-----BEGIN (?:TRUSTED )?CERTIFICATE-----[\s\S]+?-----END (?:TRUSTED )?CERTIFICATE-----/g

/** The reason for which no connection can be made with these certificates; null if it can. */
export function certificateProblem({ ca, cert, key }: Certificates): string | null {
  // The crypto module is loaded with the first certificate.
  const { X509Certificate, createPrivateKey } = process.getBuiltinModule('node:crypto')
  for (const [name, pem] of [['ca_file', ca] as const, ['client_cert_file', cert] as const]) {
    if (pem === undefined) continue
    const found = pem.toString('latin1').match(PEM_CERTIFICATE) ?? []
    if (found.length === 0 || !found.every((one) => isRead(() => new X509Certificate(one))))
      return `${name} holds no certificate in PEM, or a damaged one`
  }
  if (cert === undefined) return null
  if (!isRead(() => createPrivateKey(key ?? '')))
    return 'client_key_file holds no private key in PEM without a passphrase'
  return isRead(() => process.getBuiltinModule('node:tls').createSecureContext({ cert, key }))
    ? null
    : 'client_key_file does not hold the key of the certificate in client_cert_file'
}

function isRead(read: () => unknown): boolean {
  try {
    read()
    return true
  } catch {
    return false
  }
}
