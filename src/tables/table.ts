// Tables in every format: named columns, and rows of cells in their order.
import type { SchemaElement } from 'hyparquet'
import { ExplainedError } from '../domain/errors.ts'
import { shortened } from '../domain/text.ts'

/** The value of a cell: null for no value, undefined for a key that a JSONL row lacks, JSON for objects and arrays. */
export type Cell = unknown

export interface Row {
  cells: readonly Cell[]
  /** The JSON of the first cells as read from a JSONL file, written unchanged. */
  source?: { json: string; cells: number }
}

/** The type of a cell. `float`: a number of 32 bits. */
type PlainType = 'string' | 'integer' | 'number' | 'float' | 'boolean' | 'json'
export type ColumnType = PlainType | ListType

/** The type of a list, whose items may be null. */
export interface ListType {
  items: ColumnType
}

/** The depth from which nested lists are JSON: each level needs columns and calls. */
export const LIST_LEVELS_MAX = 8

export function isList(type: ColumnType): type is ListType {
  return typeof type === 'object'
}

export interface ParquetColumn {
  /** The elements of the column in the file, those of nested fields after it. */
  declared: readonly SchemaElement[]
  /** The same elements without the types that would be converted. */
  stored: readonly SchemaElement[]
  /** Converts a stored value to text; undefined where the stored value is the cell. */
  text?: ((stored: unknown) => string) | undefined
}

export interface Column {
  name: string
  type: ColumnType
  /** The type in a Parquet file, for a column that was read from one. */
  parquet?: ParquetColumn
}

/** The format in which a CSV or TSV file is written. */
export interface CsvStyle {
  delimiter: string
  newline: string
  bom: boolean
  /** Whether a text that a spreadsheet would run as a formula gets an apostrophe before it (csv-writer.ts). */
  spreadsheet?: boolean
}

export interface TableReader {
  columns: readonly Column[]
  csv?: CsvStyle
  /** Reads the rows from the start of the file. */
  rows(): AsyncGenerator<Row>
}

export interface Sink {
  /** Appends a piece; undefined where the next one need not wait. */
  append(piece: string | Uint8Array): Promise<void> | undefined
  end(): Promise<void>
  /** Deletes the bytes that were written to the sink. */
  abort(): Promise<void>
}

/** Writes a table, which is complete only when `end` has returned. */
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

/** The format by the ending of a file's name; undefined for other endings. */
export function formatOf(path: string): TableFormat | undefined {
  return TABLE_FORMATS.find((format) => ENDINGS[format].test(path))
}

/** The compression of a whole file by the ending of its name. */
export function compressionOf(path: string): 'gz' | 'zst' | null {
  return /\.gz$/i.test(path) ? 'gz' : /\.zst$/i.test(path) ? 'zst' : null
}

/** Removes the ending of the format from a path. */
export function withoutEnding(path: string): string {
  const format = formatOf(path)
  return format === undefined ? path : path.replace(ENDINGS[format], '')
}

/** The text of a cell in prompts and CSV files: '' for a missing value, JSON for objects and lists. */
export function cellText(cell: Cell): string {
  if (cell === null || cell === undefined) return ''
  if (typeof cell === 'string') return cell
  if (cell instanceof Uint8Array) return Buffer.from(cell).toString('base64')
  return typeof cell === 'object' && !hasText(cell) ? cellJson(cell) : String(cell)
}

/** The JSON of a cell; integers beyond 2^53 keep their digits. */
export function cellJson(cell: Cell): string {
  return JSON.stringify(cell, jsonValue) ?? 'null'
}

function jsonValue(_key: string, value: unknown): unknown {
  if (typeof value === 'bigint') return rawJson(String(value))
  if (value instanceof Uint8Array) return Buffer.from(value).toString('base64')
  return value
}

/** JSON.rawJSON of ES2026, which the compiler's library does not have yet. */
const { rawJSON: rawJson } = JSON as typeof JSON & { rawJSON: (text: string) => unknown }

/** A value whose text is one word: a date, a time, a decimal. */
export abstract class Scalar {
  abstract toString(): string
  toJSON(): unknown {
    return this.toString()
  }
}

function hasText(value: object): boolean {
  return value instanceof Date || value instanceof Scalar
}

/** The error for a table that cannot be read or asked about; its message has the place and the reason. */
export class TableError extends ExplainedError {}

const SHOWN_CHARACTERS_MAX = 60

/** A column's name in messages, shortened. */
export function shownName(name: string): string {
  return shortened(name, SHOWN_CHARACTERS_MAX)
}

/** Throws a TableError where two columns have the same name. */
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

/** The error for a row of which no request can be made; other rows are unaffected. */
export class RowError extends Error {}

/** The fields of a request's body that the question about a row sets. */
export const QUESTION_FIELDS: readonly string[] = ['model', 'messages', 'input', 'response_format']

const ROW_ID = /^row-([1-9]\d{0,14})$/

/** The custom_id of a row, counted from 1. */
export function rowId(row: number): string {
  return `row-${row}`
}

/** The row number of a custom_id that `rowId` made; null for any other. */
export function rowOfId(custom_id: string): number | null {
  const digits = ROW_ID.exec(custom_id)?.[1]
  return digits === undefined ? null : Number(digits)
}
