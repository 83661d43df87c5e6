// The finished lines of a batch as parsed rows, page by page, in the order of the input.
import { Compile } from 'typebox/compile'
import { ResultRow } from '../tables/answer-cells.ts'
import type { ReadPorts } from './chunk-journal.ts'
import { readFinished } from './finished-page.ts'

/** As many as a chunk has at most. */
const PAGE_LINES = 1_000
const LF = 10

const resultRow = Compile(ResultRow)

export async function* readResultRows(ports: ReadPorts, batch_id: string): AsyncGenerator<ResultRow> {
  for (let after = 0, more = true; more; ) {
    const order = { after, limit: PAGE_LINES, part: 'all', contiguous: false } as const
    const page = await readFinished(ports, batch_id, order)
    for await (const line of linesOf(page.text)) {
      const row: unknown = JSON.parse(line)
      if (!resultRow.Check(row)) throw new Error(`${batch_id} has a result line of another shape`)
      yield row
    }
    after = page.nextAfter
    more = page.hasMore
  }
}

async function* linesOf(blocks: AsyncIterable<Buffer>): AsyncGenerator<string> {
  let rest: Buffer[] = []
  for await (const block of blocks) {
    let from = 0
    for (let end = block.indexOf(LF); end >= 0; end = block.indexOf(LF, from)) {
      rest.push(block.subarray(from, end))
      yield Buffer.concat(rest).toString()
      rest = []
      from = end + 1
    }
    if (from < block.length) rest.push(block.subarray(from))
  }
}
