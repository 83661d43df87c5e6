// The results of a batch as a table, written while they are read: as much is in memory as a group of rows.
import { placesInChunk } from '../../../jsonl/chunk-lines.ts'
import type { ReadPorts } from '../../../results/chunk-journal.ts'
import { readResultRows } from '../../../results/read-result-rows.ts'
import { listChunks } from '../../../store/chunks.ts'
import { readVisibleInput } from '../../../store/files.ts'
import type { BatchRow } from '../../../store/schema.ts'
import { answerColumns } from '../../../tables/answer-cells.ts'
import { type AnswerSchema, requestedSchema } from '../../../tables/answer-schema.ts'
import { resultColumns, writeResults } from '../../../tables/result-table.ts'
import type { Column, Sink, TableWriter } from '../../../tables/table.ts'

export type ResultsFormat = 'csv' | 'parquet'

export const TABLE_TYPES: Readonly<Record<ResultsFormat, string>> = {
  csv: 'text/csv; charset=utf-8',
  parquet: 'application/vnd.apache.parquet',
}

/** Smaller than in a file: many tables may be written at once, and other calls wait for each group. */
const PARQUET_GROUP = { rows: 2_000, characters: 1024 * 1024 }

export interface TableOrder {
  format: ResultsFormat
  /** CSV that a spreadsheet opens as it is meant. */
  spreadsheet: boolean
}

/** A column for each property where the first request asks for answers by a schema; else one for the answer. */
export async function* readResultsTable(
  ports: ReadPorts,
  batch: BatchRow,
  { format, spreadsheet }: TableOrder,
): AsyncGenerator<Buffer> {
  const answers = answerColumns((await firstSchema(ports, batch)) ?? undefined, '')
  const sink = new PieceSink()
  const write = async (): Promise<void> => {
    const writer = await writerOf(sink, resultColumns(answers), format, spreadsheet)
    await writeResults(readResultRows(ports, batch.id), answers, writer)
  }
  const written = write().then(
    () => sink.close(null),
    (error: unknown) => sink.close(error instanceof Error ? error : new Error(String(error))),
  )
  try {
    yield* sink.pieces()
  } finally {
    sink.refuse()
    await written
  }
}

async function writerOf(
  sink: Sink,
  columns: readonly Column[],
  format: ResultsFormat,
  spreadsheet: boolean,
): Promise<TableWriter> {
  // The libraries are loaded when needed.
  if (format === 'parquet')
    return (await import('../../../tables/parquet-writer.ts')).writeParquet(sink, columns, PARQUET_GROUP)
  const { writeCsv } = await import('../../../tables/csv-writer.ts')
  const newline = spreadsheet ? '\r\n' : '\n'
  return await writeCsv(sink, columns, { delimiter: ',', newline, bom: spreadsheet, spreadsheet })
}

/** Null where the input was deleted, too. */
async function firstSchema({ db, sealed, now }: ReadPorts, batch: BatchRow): Promise<AnswerSchema | null> {
  const content = await readVisibleInput(db, batch, now)
  const [chunk] = await listChunks(db, batch.id, 0, 1)
  if (!content || !chunk) return null
  const range = { start: chunk.byte_start, end: chunk.byte_end }
  const bytes = await sealed.readAll(content.project_id, content, range)
  for (const { start, end } of placesInChunk(bytes, { index: chunk.idx, first_line: chunk.first_line })) {
    const line: unknown = JSON.parse(bytes.toString('utf8', start, end))
    const found = requestedSchema(Object(line).body)
    if (found === null) return null
    // Its library is loaded when needed.
    const fault = (await import('./bounded-fault.ts')).boundedFault(found.schema)
    return fault ? { ...found, fault } : found
  }
  return null
}

/** Hands each piece over before the next one is written. */
class PieceSink implements Sink {
  #piece: Buffer | null = null
  #taken = Promise.withResolvers<void>()
  #arrived = Promise.withResolvers<void>()
  #closed = false
  #refused = false
  #error: Error | null = null

  async append(piece: string | Uint8Array): Promise<void> {
    if (this.#refused) throw new Error('nobody reads the table any more')
    if (piece.length === 0) return
    this.#piece = Buffer.from(piece)
    this.#taken = Promise.withResolvers<void>()
    this.#arrived.resolve()
    await this.#taken.promise
  }

  async end(): Promise<void> {}
  async abort(): Promise<void> {}

  close(error: Error | null): void {
    this.#error = error
    this.#closed = true
    this.#arrived.resolve()
  }

  refuse(): void {
    this.#refused = true
    this.#taken.resolve()
  }

  async *pieces(): AsyncGenerator<Buffer> {
    for (;;) {
      await this.#arrived.promise
      const piece = this.#piece
      if (piece !== null) {
        this.#piece = null
        this.#arrived = Promise.withResolvers<void>()
        yield piece
        this.#taken.resolve()
      } else if (this.#closed) {
        if (this.#error) throw this.#error
        return
      } else this.#arrived = Promise.withResolvers<void>()
    }
  }
}
