// Tables for people. On a terminal a row is cut at its width; elsewhere no row is cut.
import { visible } from '../../domain/text.ts'
import { type Output, paintFor, writeLine } from './terminal.ts'

const GAP = '  '

/** The rows as aligned lines; the last column is cut where a line would pass `columns`. */
export function tableLines(
  head: readonly string[],
  rows: readonly (readonly string[])[],
  columns = Number.POSITIVE_INFINITY,
): string[] {
  const seen = rows.map((row) => row.map(visible))
  const widths = head.map((title, i) => Math.max(title.length, ...seen.map((row) => row[i]?.length ?? 0)))
  return [head, ...seen].map((row) => {
    const line = row
      .map((cell, i) => cell.padEnd(widths[i] ?? 0))
      .join(GAP)
      .trimEnd()
    return line.length <= columns ? line : `${line.slice(0, Math.max(0, columns - 1))}…`
  })
}

export function printTable(
  output: Output,
  head: readonly string[],
  rows: readonly (readonly string[])[],
): void {
  const columns = output.isTTY === true ? (output.columns ?? 80) : undefined
  const [first = '', ...rest] = tableLines(head, rows, columns)
  writeLine(output, paintFor(output)('bold', first))
  for (const line of rest) writeLine(output, line)
}

/** Prints one object, a key and its value on each line; nested values as JSON. */
export function printFields(output: Output, object: object): void {
  const entries = Object.entries(object).map(([key, value]: [string, unknown]) => [key, cell(value)] as const)
  const width = Math.max(0, ...entries.map(([key]) => key.length))
  const paint = paintFor(output)
  for (const [key, value] of entries) {
    writeLine(output, `${paint('dim', key.padEnd(width))}${GAP}${value}`)
  }
}

export function printJson(output: Output, value: unknown): void {
  writeLine(output, JSON.stringify(value))
}

function cell(value: unknown): string {
  if (value === null || value === undefined) return '-'
  return typeof value === 'object' ? JSON.stringify(value) : String(value)
}
