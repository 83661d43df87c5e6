// The finished lines of a batch as parsed rows, in the order of the input, some at a time.
import { LINE_BYTES_MAX, parseResultRow, type ResultRow } from '../tables/result-row.ts'
import type { ReadPorts } from './finished-lines.ts'
import { readFinished } from './finished-page.ts'

/** As many as a chunk has at most. */
const PAGE_LINES = 1_000
/** Other calls wait while so much is parsed. */
const BATCH_BYTES = 64 * 1024
const LF = 10

export async function* readResultRows(ports: ReadPorts, batch_id: string): AsyncGenerator<ResultRow[]> {
  for (let after = 0, more = true; more; ) {
    const order = { after, limit: PAGE_LINES, part: 'all', contiguous: false } as const
    const page = await readFinished(ports, batch_id, order)
    let rows: ResultRow[] = []
    let size = 0
    for await (const { line, bytes } of linesOf(page.text)) {
      const row = parseResultRow(line, bytes)
      if (row === null) throw new Error(`${batch_id} has a result line of another shape`)
      rows.push(row)
      size += bytes
      if (size < BATCH_BYTES) continue
      yield rows
      rows = []
      size = 0
    }
    if (rows.length > 0) yield rows
    after = page.nextAfter
    more = page.hasMore
  }
}

/** Of a line that is too long for a row, the beginning. `bytes`: of the whole line. */
async function* linesOf(blocks: AsyncIterable<Buffer>): AsyncGenerator<{ line: Buffer; bytes: number }> {
  let begun: Buffer[] = []
  let bytes = 0
  const add = (part: Buffer): void => {
    if (bytes <= LINE_BYTES_MAX) begun.push(part)
    bytes += part.length
  }
  for await (const block of blocks) {
    let from = 0
    for (let end = block.indexOf(LF); end >= 0; end = block.indexOf(LF, from)) {
      add(block.subarray(from, end))
      const [part] = begun
      yield { line: part && begun.length === 1 ? part : Buffer.concat(begun), bytes }
      begun = []
      bytes = 0
      from = end + 1
    }
    if (from < block.length) add(block.subarray(from))
  }
}
