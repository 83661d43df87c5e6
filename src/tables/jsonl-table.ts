// JSONL files with one object a row. The columns are the keys of all rows, in the order in which they first occur; a
// first pass over the file finds them. A row is written as it was read, with the new columns at its end.
import { messageOf } from '../domain/errors.ts'
import { isRecord, nestsDeeper } from '../domain/json-record.ts'
import { byteLines } from '../jsonl/byte-lines.ts'
import { DEPTH_MAX } from '../jsonl/json-scan.ts'
import {
  type Cell,
  type Column,
  type ColumnType,
  cellJson,
  LIST_LEVELS_MAX,
  type ListType,
  type Row,
  type Sink,
  TableError,
  type TableReader,
  type TableWriter,
} from './table.ts'
import { refuseUtf16, type TableSource, tableBytes, tableHead } from './table-bytes.ts'

/** The most columns: rows with more keys use values as keys. */
const COLUMNS_MAX = 10_000
const HEAD_BYTES = 4096
const LINE_BYTES_MAX = 64 * 1024 * 1024
/** The digits of an integer that may be beyond 2^53. */
const LONG_NUMBER = /\d{16}/

/** The error for a line that is not a row; other lines may be rows. */
export class BadRow extends TableError {}

export async function openJsonl(source: TableSource): Promise<TableReader> {
  const columns = await readColumns(source)
  const places = columns.map(({ name }) => name)
  return {
    columns,
    async *rows() {
      for await (const { json, row } of readRows(source)) {
        const cells = places.map((name) => (Object.hasOwn(row, name) ? row[name] : undefined))
        yield { cells, source: { json, cells: cells.length } }
      }
    },
  }
}

export function writeJsonl(sink: Sink, columns: readonly Column[]): TableWriter {
  const keys = columns.map(({ name }) => JSON.stringify(name))
  return {
    async write(row: Row) {
      await sink.append(`${rowJson(row, keys)}\n`)
    },
    end: () => sink.end(),
    abort: () => sink.abort(),
  }
}

/** Reads the first line with an object, which tells rows from requests; undefined in an empty file. */
export async function firstObject(source: TableSource): Promise<Record<string, unknown> | undefined> {
  for await (const { row } of readRows(source)) return row
  return undefined
}

function rowJson({ source, cells }: Row, keys: readonly string[]): string {
  const added: string[] = []
  for (let i = source?.cells ?? 0; i < cells.length; i++) {
    if (cells[i] !== undefined) added.push(`${keys[i]}:${cellJson(cells[i])}`)
  }
  if (source === undefined) return `{${added.join(',')}}`
  const open = source.json.slice(0, -1).trimEnd()
  return `${open}${open === '{' || added.length === 0 ? '' : ','}${added.join(',')}}`
}

async function* readRows(
  source: TableSource,
): AsyncGenerator<{ json: string; row: Record<string, unknown> }> {
  const { name } = source
  refuseUtf16(name, await tableHead(source, HEAD_BYTES))
  const decoder = new TextDecoder('utf-8', { fatal: true })
  let number = 0
  for await (const { line } of byteLines(linesBounded(source))) {
    number++
    let json: string
    try {
      json = decoder.decode(line).trim()
    } catch {
      throw new BadRow(`${name}, line ${number} is not UTF-8 text`)
    }
    if (json === '') continue
    yield { json, row: parseRow(name, number, json) }
  }
}

/** Bounds the length of lines: a small compressed file could be one line of any length. */
async function* linesBounded(source: TableSource): AsyncGenerator<Buffer> {
  let open = 0
  for await (const block of tableBytes(source)) {
    const end = block.lastIndexOf(0x0a)
    open = end === -1 ? open + block.length : block.length - end - 1
    if (open > LINE_BYTES_MAX)
      throw new TableError(`${source.name} has a line of more than ${LINE_BYTES_MAX / 1024 / 1024} MiB`)
    yield block
  }
}

function parseRow(name: string, number: number, json: string): Record<string, unknown> {
  let row: unknown
  try {
    row = LONG_NUMBER.test(json) ? JSON.parse(json, exactNumber) : JSON.parse(json)
  } catch (error) {
    throw new BadRow(
      `${name}, line ${number} is not JSON (${messageOf(error)}); each line has to be one JSON object`,
    )
  }
  if (nestsDeeper(row, DEPTH_MAX))
    throw new BadRow(`${name}, line ${number} nests deeper than ${DEPTH_MAX} levels`)
  if (isRecord(row)) return { ...row }
  throw new BadRow(
    `${name}, line ${number} is not a JSON object; each line has to be one, with a key for each column`,
  )
}

/** Converts an integer that a double cannot hold to a bigint. */
function exactNumber(_key: string, value: unknown, context?: { source?: string }): unknown {
  if (typeof value !== 'number' || Number.isSafeInteger(value)) return value
  const source = context?.source ?? ''
  return /^-?\d+$/.test(source) ? BigInt(source) : value
}

async function readColumns(source: TableSource): Promise<Column[]> {
  const types = new Map<string, Seen>()
  for await (const { row } of readRows(source)) {
    for (const [name, cell] of Object.entries(row)) types.set(name, widened(types.get(name), seenIn(cell)))
    if (types.size > COLUMNS_MAX)
      throw new TableError(
        `the rows of ${source.name} have more than ${COLUMNS_MAX} different keys; each key is a column`,
      )
  }
  return [...types].map(([name, type]) => ({ name, type: settled(type) }))
}

/** The type that fits every cell so far; undefined while all were null. */
type Seen = Exclude<ColumnType, ListType> | { items: Seen } | undefined

function settled(type: Seen): ColumnType {
  return typeof type === 'object' ? { items: settled(type.items) } : (type ?? 'string')
}

function widened(type: Seen, seen: Seen): Seen {
  if (seen === undefined || seen === type) return type
  if (type === undefined) return seen
  if (typeof type === 'object' && typeof seen === 'object') {
    const items = widened(type.items, seen.items)
    return items === type.items ? type : { items }
  }
  const numbers = type === 'integer' || type === 'number'
  return numbers && (seen === 'integer' || seen === 'number') ? 'number' : 'json'
}

const INT64_MAX = 2n ** 63n - 1n

function seenIn(cell: Cell, level = 0): Seen {
  if (cell === null || cell === undefined) return undefined
  if (typeof cell === 'string') return 'string'
  if (typeof cell === 'boolean') return 'boolean'
  if (typeof cell === 'bigint') return cell > INT64_MAX || cell < -INT64_MAX - 1n ? 'json' : 'integer'
  if (typeof cell === 'number') return Number.isSafeInteger(cell) ? 'integer' : 'number'
  if (!Array.isArray(cell) || level === LIST_LEVELS_MAX) return 'json'
  return { items: cell.reduce((type: Seen, item) => widened(type, seenIn(item, level + 1)), undefined) }
}
