// Servers quote what they were sent, keys included; reasons end up in logs and audit records.

/** Shorter values are no secrets, and striking them out would garble ordinary words. */
const SECRET_LENGTH_MIN = 8

/** Strikes every secret of `secrets` out of a text. */
export function redactor(secrets: readonly (string | null | undefined)[]): (text: string) => string {
  const secret = secrets.filter((value) => typeof value === 'string').flatMap(parts)
  if (secret.length === 0) return (text) => text
  return (text) => secret.reduce((left, value) => left.replaceAll(value, '[redacted]'), text)
}

/** A header's value may be a scheme and a key: the key counts on its own. Longest first. */
function parts(value: string): string[] {
  const words = value.split(/\s+/).filter((word) => word !== value)
  return [value, ...words].filter((part) => part.length >= SECRET_LENGTH_MIN)
}
