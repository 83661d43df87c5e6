// The lines of both result files of a batch in the order of its input: each file is in that order already, and the
// request ID of a line sorts by its number.
import { createReadStream } from 'node:fs'
import { Compile } from 'typebox/compile'
import { ResultRow } from '../../tables/answer-cells.ts'
import { byteLines } from '../client/byte-lines.ts'
import { Failure } from '../terminal/failure.ts'

const resultRow = Compile(ResultRow)

export async function* resultRows(output: string, errors: string): AsyncGenerator<ResultRow> {
  const answered = linesOf(output)
  const failed = linesOf(errors)
  let [a, b] = [await answered.next(), await failed.next()]
  while (a.done !== true || b.done !== true) {
    if (b.done === true || (a.done !== true && a.value.id < b.value.id)) {
      if (a.done !== true) yield a.value
      a = await answered.next()
    } else {
      yield b.value
      b = await failed.next()
    }
  }
}

async function* linesOf(path: string): AsyncGenerator<ResultRow, undefined> {
  const blocks: AsyncIterable<Buffer> = createReadStream(path, { highWaterMark: 256 * 1024 })
  for await (const line of byteLines(blocks)) {
    if (line.length === 0) continue
    const parsed: unknown = JSON.parse(line.toString())
    if (!resultRow.Check(parsed)) throw new Failure(`${path} has a line that is not a result line`)
    yield parsed
  }
}
