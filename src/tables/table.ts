// Tables in every format: named columns, and rows of cells in their order.
import type { SchemaElement } from 'hyparquet'
import { ExplainedError } from '../domain/errors.ts'
import { shortened } from '../domain/text.ts'

/** Null: no value; undefined: a key that a JSONL row does not have. Objects and arrays are JSON values. */
export type Cell = unknown

export interface Row {
  cells: readonly Cell[]
  /** The JSON of the first cells as a JSONL file has it, to be written as it was read. */
  source?: { json: string; cells: number }
}

/** `float`: a number of 32 bits. */
type PlainType = 'string' | 'integer' | 'number' | 'float' | 'boolean' | 'json'
export type ColumnType = PlainType | ListType

/** Items may be null. */
export interface ListType {
  items: ColumnType
}

/** Lists that are deeper within lists are JSON: each level is columns, and calls, of its own. */
export const LIST_LEVELS_MAX = 8

export function isList(type: ColumnType): type is ListType {
  return typeof type === 'object'
}

export interface ParquetColumn {
  /** The elements of the column in the file, those of nested fields after it. */
  declared: readonly SchemaElement[]
  /** The same elements without the types that would be converted. */
  stored: readonly SchemaElement[]
  /** Makes the text of a stored value; undefined where the stored value is the cell. */
  text?: ((stored: unknown) => string) | undefined
}

export interface Column {
  name: string
  type: ColumnType
  /** The type in a Parquet file, for a column that was read from one. */
  parquet?: ParquetColumn
}

/** How a CSV or TSV file is written. */
export interface CsvStyle {
  delimiter: string
  newline: string
  bom: boolean
  /** A text that a spreadsheet would run as a formula gets an apostrophe before it (csv-writer.ts). */
  spreadsheet?: boolean
}

export interface TableReader {
  columns: readonly Column[]
  csv?: CsvStyle
  /** Reads the file from its start. */
  rows(): AsyncGenerator<Row>
}

/** Where the bytes of a table go. */
export interface Sink {
  /** Undefined while it need not be waited for. */
  append(piece: string | Uint8Array): Promise<void> | undefined
  end(): Promise<void>
  /** Deletes what was written. */
  abort(): Promise<void>
}

/** The file is a table only when `end` has returned. */
export interface TableWriter {
  write(row: Row): Promise<void>
  end(): Promise<void>
  abort(): Promise<void>
}

export const TABLE_FORMATS = ['csv', 'tsv', 'jsonl', 'parquet'] as const
export type TableFormat = (typeof TABLE_FORMATS)[number]

const ENDINGS: Readonly<Record<TableFormat, RegExp>> = {
  csv: /\.csv(\.gz|\.zst)?$/i,
  tsv: /\.(tsv|tab)(\.gz|\.zst)?$/i,
  jsonl: /\.(jsonl|ndjson)(\.gz|\.zst)?$/i,
  parquet: /\.(parquet|pq)$/i,
}

/** The format that the ending of a file name says; undefined when it says none. */
export function formatOf(path: string): TableFormat | undefined {
  return TABLE_FORMATS.find((format) => ENDINGS[format].test(path))
}

/** How the file is compressed as a whole, by the ending of its name. */
export function compressionOf(path: string): 'gz' | 'zst' | null {
  return /\.gz$/i.test(path) ? 'gz' : /\.zst$/i.test(path) ? 'zst' : null
}

/** The path without the ending of its format. */
export function withoutEnding(path: string): string {
  const format = formatOf(path)
  return format === undefined ? path : path.replace(ENDINGS[format], '')
}

/** A cell as text, in prompts and CSV files: no text for a missing value, JSON for objects and lists. */
export function cellText(cell: Cell): string {
  if (cell === null || cell === undefined) return ''
  if (typeof cell === 'string') return cell
  if (cell instanceof Uint8Array) return Buffer.from(cell).toString('base64')
  return typeof cell === 'object' && !hasText(cell) ? cellJson(cell) : String(cell)
}

/** A cell as JSON; integers beyond 2^53 keep their digits. */
export function cellJson(cell: Cell): string {
  return JSON.stringify(cell, jsonValue) ?? 'null'
}

function jsonValue(_key: string, value: unknown): unknown {
  if (typeof value === 'bigint') return rawJson(String(value))
  if (value instanceof Uint8Array) return Buffer.from(value).toString('base64')
  return value
}

/** ES2026; not in the compiler's library yet. */
const { rawJSON: rawJson } = JSON as typeof JSON & { rawJSON: (text: string) => unknown }

/** A value that is one word as text: a date, a time, a decimal. */
export abstract class Scalar {
  abstract toString(): string
  toJSON(): unknown {
    return this.toString()
  }
}

function hasText(value: object): boolean {
  return value instanceof Date || value instanceof Scalar
}

/** A table that cannot be read, or not be asked about; the message says where and why. */
export class TableError extends ExplainedError {}

const SHOWN_CHARACTERS_MAX = 60

/** A column as messages name it. */
export function shownName(name: string): string {
  return shortened(name, SHOWN_CHARACTERS_MAX)
}

/** Throws a TableError where two columns have one name: it would say nothing. */
export function checkNames(table: string, columns: readonly Column[]): void {
  const names = new Set<string>()
  for (const { name } of columns) {
    if (names.has(name))
      throw new TableError(
        `${table} has two columns ${name === '' ? 'without a name' : `named "${shownName(name)}"`}; give each column a name of its own`,
      )
    names.add(name)
  }
}

/** A row of which no request can be made; the other rows can. */
export class RowError extends Error {}

/** The fields of a request's body that are made of what is asked about a row. */
export const QUESTION_FIELDS: readonly string[] = ['model', 'messages', 'input', 'response_format']

const ROW_ID = /^row-([1-9]\d{0,14})$/

/** The custom_id of a row, counted from 1. */
export function rowId(row: number): string {
  return `row-${row}`
}

/** The row of a custom_id that `rowId` made; null for any other. */
export function rowOfId(custom_id: string): number | null {
  const digits = ROW_ID.exec(custom_id)?.[1]
  return digits === undefined ? null : Number(digits)
}
