// Makes the request lines of a batch from the rows of a table. A row of which none can be made is skipped, and its
// error goes into the table of answers.

import type { TableReader } from '../../tables/table.ts'
import { Failure, Interrupted } from '../terminal/failure.ts'
import { PartialFile } from './partial-file.ts'
import { type Question, RowError, requestLine } from './row-request.ts'

export interface Prepared {
  rows: number
  /** The errors of rows without a request, by row number. */
  skipped: ReadonlyMap<number, string>
}

export interface PrepareOptions {
  /** At most this many rows, from the first. */
  limit: number
  signal: AbortSignal
  onRow(rows: number): void
}

/** With more, something is wrong with all rows. */
const SKIPPED_MAX = 100_000

export async function prepareRows(
  table: TableReader,
  question: Question,
  path: string,
  { limit, signal, onRow }: PrepareOptions,
): Promise<Prepared> {
  const skipped = new Map<number, string>()
  const file = await PartialFile.create(path)
  let rows = 0
  try {
    for await (const { cells } of table.rows()) {
      if (rows === limit) break
      rows++
      try {
        await file.append(await requestLine(rows, cells, question))
      } catch (error) {
        if (!(error instanceof RowError)) throw error
        skipped.set(rows, error.message)
      }
      onRow(rows)
      if (signal.aborted) throw new Interrupted()
    }
    checkPrepared(rows, skipped)
    await file.end()
    return { rows, skipped }
  } catch (error) {
    await file.abort()
    throw error
  }
}

function checkPrepared(rows: number, skipped: ReadonlyMap<number, string>): void {
  if (rows === 0) throw new Failure('the table has columns, but no rows')
  const [first] = skipped
  if (first === undefined || (skipped.size < rows && skipped.size <= SKIPPED_MAX)) return
  throw new Failure(
    `no request can be made of ${skipped.size === rows ? 'any' : `more than ${SKIPPED_MAX}`} row; row ${first[0]}: ${first[1]}`,
  )
}
