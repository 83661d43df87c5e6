// Finds, cuts and replaces members of a JSON object as bytes: numbers keep their digits, and only the needed members are read.
import { JsonScanner, type Names, type Span } from './json-scan.ts'

const OPEN_BRACE = 0x7b

const json = new JsonScanner()

/**
 * The spans of the values of these members; the last of equal ones counts. Empty for a value that is no object.
 * Throws a SyntaxError for bytes that are not JSON.
 */
export function membersOf<T extends string>(
  bytes: Buffer,
  names: Names<T>,
  { start, end }: Span = { start: 0, end: bytes.length },
): { readonly [Name in T]?: Span } {
  const found: { [Name in T]?: Span } = {}
  json.open(bytes, start, end)
  for (let more = json.beginObject(); more; more = json.nextMember()) {
    const name = json.key(names)
    const from = json.at
    json.skipValue()
    if (name !== null) found[name] = { start: from, end: json.at }
  }
  json.finish()
  if (json.fault) throw new SyntaxError(json.fault.what)
  return found
}

/** The JSON of an object without the members `names`; the other members keep their bytes. */
export function withoutMembers(bytes: Buffer, names: Names<string>): Buffer {
  json.open(bytes, 0, bytes.length)
  const kept: Buffer[] = []
  for (let more = json.beginObject(); more; more = json.nextMember()) {
    const start = json.key_start - 1
    const isKept = json.key(names) === null
    json.skipValue()
    if (isKept) kept.push(Buffer.from(kept.length === 0 ? '{' : ','), bytes.subarray(start, json.at))
  }
  return Buffer.concat([...(kept.length === 0 ? [Buffer.from('{')] : kept), Buffer.from('}')])
}

/**
 * The JSON of an object with these members, by their JSON. Those that it has already are replaced where they stand, for some
 * servers refuse a key that comes twice.
 */
export function withMembers(
  bytes: Buffer,
  { start, end }: Span,
  names: Names<string>,
  values: ReadonlyMap<string, Uint8Array>,
): Uint8Array {
  const pieces: Uint8Array[] = []
  const missing = new Map(values)
  let at = start
  json.open(bytes, start, end)
  for (let more = json.beginObject(); more; more = json.nextMember()) {
    const key = json.key(names)
    const value = key === null ? undefined : values.get(key)
    if (key !== null && value !== undefined) {
      missing.delete(key)
      pieces.push(bytes.subarray(at, json.at), value)
    }
    json.skipValue()
    if (value !== undefined) at = json.at
  }
  pieces.push(bytes.subarray(at, end - 1))
  for (const [name, value] of missing) pieces.push(Buffer.from(`,"${name}":`), value)
  pieces.push(bytes.subarray(end - 1, end))
  return Buffer.concat(pieces)
}

export function isObjectAt(bytes: Buffer, span: Span | undefined): span is Span {
  return span !== undefined && bytes[span.start] === OPEN_BRACE
}
