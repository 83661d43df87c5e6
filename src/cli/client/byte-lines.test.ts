import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { byteLines } from './byte-lines.ts'

async function* blocksOf(...blocks: (string | Uint8Array)[]): AsyncGenerator<Buffer> {
  for (const block of blocks) yield Buffer.from(block)
}

async function texts(lines: AsyncIterable<Buffer>): Promise<string[]> {
  const found: string[] = []
  for await (const line of lines) found.push(line.toString('latin1'))
  return found
}

test('lines are the same wherever the blocks end', async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.array(fc.constantFrom('a', 'bc', '\n', '\r\n', '\xff')),
      fc.nat(20),
      async (parts, cut) => {
        const whole = Buffer.from(parts.join(''), 'latin1')
        const lines = await texts(byteLines(blocksOf(whole.subarray(0, cut), whole.subarray(cut))))
        const expected = parts.join('').split('\n')
        if (expected.at(-1) === '') expected.pop()
        assert.deepEqual(lines, expected)
      },
    ),
  )
})
