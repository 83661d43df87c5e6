// The lines of both result files of a batch in the order of its input: each file is in that order already, and the
// request ID of a line sorts by its number.
import { createReadStream } from 'node:fs'
import { parseResultRow, type ResultRow } from '../../tables/result-table.ts'
import { byteLines } from '../client/byte-lines.ts'
import { Failure } from '../terminal/failure.ts'

/** Rows whose answers are checked together; more of them end with the row that exceeds the size. */
const BATCH_ROWS = 100
const BATCH_BYTES = 256 * 1024

export async function* resultRows(output: string, errors: string): AsyncGenerator<ResultRow[]> {
  let batch: ResultRow[] = []
  let size = 0
  for await (const { row, bytes } of inOrder(output, errors)) {
    batch.push(row)
    size += bytes
    if (batch.length < BATCH_ROWS && size < BATCH_BYTES) continue
    yield batch
    batch = []
    size = 0
  }
  if (batch.length > 0) yield batch
}

interface ReadRow {
  row: ResultRow
  bytes: number
}

async function* inOrder(output: string, errors: string): AsyncGenerator<ReadRow> {
  const answered = linesOf(output)
  const failed = linesOf(errors)
  let [a, b] = [await answered.next(), await failed.next()]
  while (a.done !== true || b.done !== true) {
    if (b.done === true || (a.done !== true && a.value.row.id < b.value.row.id)) {
      if (a.done !== true) yield a.value
      a = await answered.next()
    } else {
      yield b.value
      b = await failed.next()
    }
  }
}

async function* linesOf(path: string): AsyncGenerator<ReadRow, undefined> {
  const blocks: AsyncIterable<Buffer> = createReadStream(path, { highWaterMark: 256 * 1024 })
  for await (const line of byteLines(blocks)) {
    if (line.length === 0) continue
    const row = parseResultRow(line)
    if (row === null) throw new Failure(`${path} has a line that is not a result line`)
    yield { row, bytes: line.length }
  }
}
