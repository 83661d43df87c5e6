// Reads the version from package.json, which is one folder above src/ and above dist/.
import { readFileSync } from 'node:fs'

export function version(): string {
  const text = readFileSync(new URL('../../package.json', import.meta.url), 'utf8')
  const parsed: unknown = JSON.parse(text)
  const found = typeof parsed === 'object' && parsed !== null && 'version' in parsed ? parsed.version : null
  return String(found)
}
