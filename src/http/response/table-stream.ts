// Writes tables that are sent while they are made: as much is in memory as a group of rows.
import type { Column, Sink, TableWriter } from '../../tables/table.ts'

export const PARQUET = 'application/vnd.apache.parquet'

export const TABLE_TYPES = { csv: 'text/csv; charset=utf-8', parquet: PARQUET } as const

export interface TableOrder {
  format: keyof typeof TABLE_TYPES
  /** Whether CSV is written for spreadsheets. */
  spreadsheet: boolean
}

/** The size of a row group, smaller than in files: other calls wait while a group is written. */
const PARQUET_GROUP = { rows: 2_000, characters: 1024 * 1024 }

/** Yields a table in pieces, perhaps empty, whenever `write` yields; `write` writes the rows and ends the table. */
export async function* tablePieces(
  columns: readonly Column[],
  order: TableOrder,
  write: (writer: TableWriter) => AsyncIterable<unknown>,
): AsyncGenerator<Buffer> {
  const pieces: Buffer[] = []
  const sink: Sink = {
    append: async (piece) => void pieces.push(Buffer.from(piece)),
    end: async () => {},
    abort: async () => {},
  }
  const writer = await writerOf(sink, columns, order)
  yield Buffer.concat(pieces.splice(0))
  for await (const _ of write(writer)) yield Buffer.concat(pieces.splice(0))
}

async function writerOf(
  sink: Sink,
  columns: readonly Column[],
  { format, spreadsheet }: TableOrder,
): Promise<TableWriter> {
  // Each library is loaded when needed.
  if (format === 'parquet')
    return (await import('../../tables/parquet-writer.ts')).writeParquet(sink, columns, PARQUET_GROUP)
  const { writeCsv } = await import('../../tables/csv-writer.ts')
  const newline = spreadsheet ? '\r\n' : '\n'
  return await writeCsv(sink, columns, { delimiter: ',', newline, bom: spreadsheet, spreadsheet })
}
