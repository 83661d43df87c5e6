// Writes Parquet files row group by row group. Columns that were read from a Parquet file keep their type; other columns
// with JSON values become columns of text, and lists become lists.
import type { SchemaElement } from 'hyparquet'
import { ByteWriter, ParquetWriter } from 'hyparquet-writer'
import { StoredScalar } from './parquet-columns.ts'
import {
  type Cell,
  type Column,
  type ColumnType,
  cellJson,
  cellText,
  isList,
  type ListType,
  type Sink,
  type TableWriter,
} from './table.ts'

const GROUP_ROWS = 20_000
/** The size of a row group, estimated in characters of its rows' text. */
const GROUP_CHARACTERS = 32 * 1024 * 1024

interface GroupSize {
  rows: number
  /** The length of the text of the group's cells; twice as much is kept in memory. */
  characters: number
}

export function writeParquet(
  sink: Sink,
  columns: readonly Column[],
  group: GroupSize = { rows: GROUP_ROWS, characters: GROUP_CHARACTERS },
): TableWriter {
  const targets = columns.map(targetOf)
  const root: SchemaElement = { name: 'schema', num_children: columns.length }
  const bytes = new ByteWriter()
  const takeBytes = async (): Promise<void> => {
    const piece = bytes.getBytes().slice()
    bytes.index = 0
    await sink.append(piece)
  }
  const writer = new ParquetWriter({
    writer: bytes,
    schema: [root, ...targets.flatMap(({ stored }) => stored)],
  })
  let waiting: unknown[][] = columns.map(() => [])
  let characters = 0
  const flush = async (): Promise<void> => {
    if (waiting[0]?.length === 0) return
    await writer.write({
      rowGroupSize: group.rows,
      columnData: targets.map(({ name, statistics }, i) => ({ name, statistics, data: waiting[i] ?? [] })),
    })
    waiting = columns.map(() => [])
    characters = 0
    await takeBytes()
  }
  return {
    async write({ cells }) {
      for (const [i, { storedValue }] of targets.entries()) {
        const cell = cells[i]
        const value = cell === null || cell === undefined ? null : storedValue(cell)
        characters += charactersOf(value)
        waiting[i]?.push(value)
      }
      if ((waiting[0]?.length ?? 0) >= group.rows || characters >= group.characters) await flush()
    },
    async end() {
      await flush()
      // Values are written as stored; the schema declares their meaning.
      writer.schema = [root, ...targets.flatMap(({ declared }) => declared)]
      await writer.finish()
      await takeBytes()
      await sink.end()
    },
    abort: () => sink.abort(),
  }
}

interface Target {
  name: string
  declared: readonly SchemaElement[]
  stored: readonly SchemaElement[]
  statistics: boolean
  storedValue(cell: Cell): unknown
}

function targetOf({ name, type, parquet }: Column): Target {
  if (parquet !== undefined && (type !== 'json' || writable(parquet.declared))) {
    const { declared, stored, text } = parquet
    const storedValue = (cell: Cell): unknown => (cell instanceof StoredScalar ? cell.stored : cell)
    return { name, declared, stored, statistics: text === undefined && type !== 'json', storedValue }
  }
  const elements = columnElements(name, type)
  return {
    name,
    declared: elements,
    stored: elements,
    statistics: !isList(type),
    storedValue: valuesOf(type),
  }
}

/** The schema elements of a column; a list has three levels by the format. */
function columnElements(name: string, type: ColumnType): SchemaElement[] {
  const repetition_type = 'OPTIONAL'
  if (!isList(type)) return [{ name, repetition_type, ...TYPES[type] }]
  return [
    { name, repetition_type, converted_type: 'LIST', num_children: 1 },
    { name: 'list', repetition_type: 'REPEATED', num_children: 1 },
    ...columnElements('element', type.items),
  ]
}

function valuesOf(type: ColumnType): (cell: Cell) => unknown {
  if (!isList(type)) return VALUES[type]
  const stored = valuesOf(type.items)
  return (cell) =>
    Array.isArray(cell)
      ? cell.map((item: unknown) => (item === null || item === undefined ? null : stored(item)))
      : null
}

/** The memory of a list's item, counted as characters: each is kept with its levels until the group is written. */
const ITEM_CHARACTERS = 32

function charactersOf(value: unknown): number {
  if (typeof value === 'string') return value.length
  if (!Array.isArray(value)) return 8
  return value.reduce((sum: number, item) => sum + charactersOf(item) + ITEM_CHARACTERS, 8)
}

/** Whether a column can keep its type. Maps and fields with converted types are written as JSON. */
function writable(elements: readonly SchemaElement[]): boolean {
  return elements.every(({ type, converted_type: converted, logical_type: logical }) => {
    if (type === undefined) return converted === undefined || converted === 'LIST'
    if (type === 'INT96' || (logical !== undefined && logical.type !== 'STRING')) return false
    return converted === undefined || converted === 'UTF8' || /^U?INT_/.test(converted)
  })
}

const TYPES: Readonly<Record<Exclude<ColumnType, ListType>, Pick<SchemaElement, 'type' | 'converted_type'>>> =
  {
    string: { type: 'BYTE_ARRAY', converted_type: 'UTF8' },
    integer: { type: 'INT64' },
    number: { type: 'DOUBLE' },
    float: { type: 'FLOAT' },
    boolean: { type: 'BOOLEAN' },
    json: { type: 'BYTE_ARRAY', converted_type: 'UTF8' },
  }

const VALUES: Readonly<Record<Exclude<ColumnType, ListType>, (cell: Cell) => unknown>> = {
  string: cellText,
  integer: (cell) => (typeof cell === 'bigint' ? cell : BigInt(Number(cell))),
  number: Number,
  float: Number,
  boolean: (cell) => cell === true,
  json: cellJson,
}
