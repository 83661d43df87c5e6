// The types of Parquet columns. Values whose JavaScript form would lose digits (decimals, times) are read and written as
// Parquet stores them; their text is made only where it is needed.
import type { SchemaElement, SchemaTree } from 'hyparquet'
import { type Cell, type Column, type ColumnType, type ParquetColumn, Scalar } from './table.ts'

/** A stored Parquet value with the text that it represents. */
export class StoredScalar extends Scalar {
  readonly stored: unknown
  readonly #text: (stored: unknown) => string

  constructor(stored: unknown, text: (stored: unknown) => string) {
    super()
    this.stored = stored
    this.#text = text
  }

  toString(): string {
    return this.#text(this.stored)
  }
}

/** The type of a column as JSON or text, and how it is read from and written to Parquet. */
export function parquetColumn(tree: SchemaTree): { type: ColumnType; parquet: ParquetColumn } {
  const declared = elementsOf(tree)
  const [element] = declared
  if (element === undefined || declared.length > 1 || element.repetition_type === 'REPEATED')
    return { type: 'json', parquet: { declared, stored: declared } }
  return scalarColumn(element)
}

function scalarColumn(element: SchemaElement): { type: ColumnType; parquet: ParquetColumn } {
  const { type, declared = element, stored = element, text } = scalarOf(element)
  return { type, parquet: { declared: [declared], stored: [stored], text } }
}

interface ScalarColumn {
  type: ColumnType
  declared?: SchemaElement
  stored?: SchemaElement
  text?: (stored: unknown) => string
}

const NANOS_PER = { MILLIS: 1_000_000n, MICROS: 1000n, NANOS: 1n } as const
type Unit = keyof typeof NANOS_PER

function scalarOf(element: SchemaElement): ScalarColumn {
  const {
    type,
    converted_type: converted,
    logical_type: logical,
    name,
    repetition_type,
    type_length,
  } = element
  const plain: SchemaElement = { name, repetition_type, type, type_length }
  if (type === 'INT96') {
    // The format has replaced 96-bit times by 64-bit nanoseconds.
    const declared: SchemaElement = {
      name,
      repetition_type,
      type: 'INT64',
      logical_type: { type: 'TIMESTAMP', isAdjustedToUTC: true, unit: 'NANOS' },
    }
    const stored: SchemaElement = { name, repetition_type, type: 'INT64' }
    return { type: 'string', declared, stored, text: (value) => timeText(value, 'NANOS', true) }
  }
  if (converted === 'DECIMAL' || logical?.type === 'DECIMAL') {
    const scale = logical?.type === 'DECIMAL' ? logical.scale : (element.scale ?? 0)
    return { type: 'string', stored: plain, text: (value) => decimalText(value, scale) }
  }
  if (logical?.type === 'TIMESTAMP') {
    const { unit, isAdjustedToUTC } = logical
    return { type: 'string', stored: plain, text: (value) => timeText(value, unit, isAdjustedToUTC) }
  }
  if (converted === 'TIMESTAMP_MILLIS' || converted === 'TIMESTAMP_MICROS') {
    const unit = converted === 'TIMESTAMP_MILLIS' ? 'MILLIS' : 'MICROS'
    return { type: 'string', stored: plain, text: (value) => timeText(value, unit, true) }
  }
  if (logical?.type === 'TIME' || converted === 'TIME_MILLIS' || converted === 'TIME_MICROS') {
    const unit = logical?.type === 'TIME' ? logical.unit : converted === 'TIME_MILLIS' ? 'MILLIS' : 'MICROS'
    return { type: 'string', stored: plain, text: (value) => timeText(value, unit, false).slice(11) }
  }
  if (converted === 'DATE' || logical?.type === 'DATE')
    return { type: 'string', stored: plain, text: dateText }
  if (converted === 'JSON' || logical?.type === 'JSON')
    return { type: 'string', stored: { ...plain, converted_type: 'UTF8' } }
  if (converted === 'UTF8' || converted === 'ENUM' || logical?.type === 'STRING' || logical?.type === 'ENUM')
    return { type: 'string', stored: { ...plain, converted_type: 'UTF8' } }
  if (type === 'BYTE_ARRAY' || (type === 'FIXED_LEN_BYTE_ARRAY' && logical === undefined))
    return { type: 'string', stored: plain }
  if (type === 'BOOLEAN') return { type: 'boolean' }
  if (type === 'INT32' || type === 'INT64') return { type: 'integer' }
  if (type === 'FLOAT' || type === 'DOUBLE' || logical?.type === 'FLOAT16') return { type: 'number' }
  return { type: 'string' }
}

function elementsOf(tree: SchemaTree): SchemaElement[] {
  return [written(tree.element), ...tree.children.flatMap(elementsOf)]
}

/**
 * Replaces a logical integer type by the equivalent older converted type: the writer stores the width of the logical
 * type in a form that other readers reject.
 */
function written(element: SchemaElement): SchemaElement {
  const { logical_type: logical } = element
  if (logical?.type !== 'INTEGER') return element
  const converted = INTEGERS.find((name) => name === `${logical.isSigned ? '' : 'U'}INT_${logical.bitWidth}`)
  return { ...element, logical_type: undefined, converted_type: converted }
}

const INTEGERS = ['INT_8', 'INT_16', 'INT_32', 'INT_64', 'UINT_8', 'UINT_16', 'UINT_32', 'UINT_64'] as const

/** The cell of a value that the library has read. */
export function cellOf(value: unknown, { text }: ParquetColumn): Cell {
  if (value === null || value === undefined) return null
  return text === undefined || value instanceof StoredScalar ? value : new StoredScalar(value, text)
}

/** Parsers of times within lists and objects, which the library would cut to milliseconds. */
export const TIME_PARSERS = {
  timestampFromMicroseconds: (micros: bigint) =>
    new StoredScalar(micros, (value) => timeText(value, 'MICROS', true)),
  timestampFromNanoseconds: (nanos: bigint) =>
    new StoredScalar(nanos, (value) => timeText(value, 'NANOS', true)),
}

function whole(stored: unknown): bigint {
  if (typeof stored === 'bigint') return stored
  if (typeof stored === 'number') return BigInt(stored)
  if (!(stored instanceof Uint8Array)) throw new TypeError('a decimal is stored as an integer or as bytes')
  const unsigned = stored.length === 0 ? 0n : BigInt(`0x${Buffer.from(stored).toString('hex')}`)
  return BigInt.asIntN(stored.length * 8, unsigned)
}

/** A column of decimals with `scale` decimal places. */
export function decimalColumn(name: string, scale: number): Column {
  return wholeColumn({ name, converted_type: 'DECIMAL', precision: 18, scale })
}

/** A column of times, given in Unix ms. */
export function timeColumn(name: string): Column {
  return wholeColumn({ name, converted_type: 'TIMESTAMP_MILLIS' })
}

function wholeColumn(element: SchemaElement): Column {
  return { name: element.name, ...scalarColumn({ ...element, repetition_type: 'OPTIONAL', type: 'INT64' }) }
}

function decimalText(stored: unknown, scale: number): string {
  const unscaled = whole(stored)
  const digits = String(unscaled < 0n ? -unscaled : unscaled).padStart(scale + 1, '0')
  const point = digits.length - scale
  const sign = unscaled < 0n ? '-' : ''
  return scale <= 0 ? sign + digits : `${sign}${digits.slice(0, point)}.${digits.slice(point)}`
}

const NANOS_PER_SECOND = 1_000_000_000n

/** A time in ISO 8601, with as many decimals as it has, in groups of three. */
function timeText(stored: unknown, unit: Unit, utc: boolean): string {
  const nanos = whole(stored) * NANOS_PER[unit]
  const fraction = ((nanos % NANOS_PER_SECOND) + NANOS_PER_SECOND) % NANOS_PER_SECOND
  const seconds = (nanos - fraction) / NANOS_PER_SECOND
  const decimals = String(fraction)
    .padStart(9, '0')
    .replace(/(000)+$/, '')
  const text = new Date(Number(seconds) * 1000).toISOString().slice(0, -'.000Z'.length)
  return `${text}${decimals === '' ? '' : `.${decimals}`}${utc ? 'Z' : ''}`
}

function dateText(stored: unknown): string {
  return new Date(Number(stored) * 86_400_000).toISOString().slice(0, -'T00:00:00.000Z'.length)
}
