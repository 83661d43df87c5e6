// A line of an output or error file, as tables read it.
import Type from 'typebox'
import { Compile } from 'typebox/compile'
import { JsonScanner } from '../jsonl/json-scan.ts'
import { Names } from '../jsonl/json-scan-names.ts'

/** Other fields stay unread. */
const Shape = Type.Object({
  id: Type.String(),
  custom_id: Type.String(),
  response: Type.Optional(
    Type.Union([Type.Object({ status_code: Type.Number(), body: Type.Unknown() }), Type.Null()]),
  ),
  error: Type.Optional(
    Type.Union([Type.Object({ code: Type.String(), message: Type.String() }), Type.Null()]),
  ),
})
export type ResultRow = Type.Static<typeof Shape>

const shape = Compile(Shape)

/** What a longer line holds may take a hundred times as much memory, and fits into no cell. */
export const LINE_BYTES_MAX = 4 * 1024 * 1024
const NAMES = new Names('id', 'custom_id')

/**
 * Null where it is no result line. `line`: without its line break; of one of more than LINE_BYTES_MAX, its beginning is
 * enough. `bytes`: of the whole line.
 */
export function parseResultRow(line: Buffer, bytes = line.length): ResultRow | null {
  const row: unknown = bytes > LINE_BYTES_MAX ? headOf(line, bytes) : JSON.parse(line.toString())
  return shape.Check(row) ? row : null
}

/** The IDs of the line, which are its first members, and what a table says instead of the rest. */
function headOf(line: Buffer, bytes: number): Record<string, unknown> {
  const mib = (size: number): number => Math.ceil(size / 1024 / 1024)
  const message = `the result takes ${mib(bytes)} MiB, and a table shows up to ${mib(LINE_BYTES_MAX)}: read it in the output file`
  const row: Record<string, unknown> = { error: { code: 'too_large', message } }
  const json = new JsonScanner()
  json.open(line, 0, line.length)
  for (let more = json.beginObject(); more; more = json.nextMember()) {
    const name = json.key(NAMES)
    if (name === null || !json.readString()) break
    row[name] = json.decode(json.text_start, json.text_end, json.text_escaped)
  }
  return row
}
