import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { linesWith } from '../commands/retry.ts'
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

test('lines are selected by custom_id and keep their bytes', async () => {
  const a = '{"custom_id":"a", "n":9007199254740993}\r'
  const b = '{ "custom_id":"b","x":"\\u00e9" }'
  const picked = await texts(
    linesWith(blocksOf(`\uFEFF${a}\n\n  \n`, `${b}\n{"custom_id":"c"}`), new Set(['a', 'c'])),
  )
  assert.deepEqual(picked, [`${Buffer.from('\uFEFF').toString('latin1')}${a}\n`, '{"custom_id":"c"}\n'])
})
