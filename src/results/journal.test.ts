import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { writeLine } from '../../test/support/write-line.ts'
import { ChunkResults } from './chunk-results.ts'
import { scanRows } from './journal.ts'

test('rows are found in pieces of any size; bytes after the last line break are no row', async () => {
  const text = fc
    .array(fc.stringMatching(/^[a-z]{0,12}$/))
    .map((rows) => rows.map((row) => `${row}\n`).join(''))
  await fc.assert(
    fc.asyncProperty(
      text,
      fc.stringMatching(/^[a-z]{0,5}$/),
      fc.integer({ min: 1, max: 20 }),
      async (rows, tail, size) => {
        const bytes = Buffer.from(rows + tail)
        async function* pieces(): AsyncGenerator<Buffer> {
          for (let at = 0; at < bytes.length; at += size) yield bytes.subarray(at, at + size)
        }
        const found: string[] = []
        for await (const { start, end, head } of scanRows(pieces(), 4, 100)) {
          const row = bytes.toString('latin1', start - 100, end - 100)
          assert.equal(head, row.slice(0, 4))
          found.push(row)
        }
        assert.equal(found.join(''), rows)
        assert.ok(found.every((row) => row.indexOf('\n') === row.length - 1))
      },
    ),
  )
})

test('results give their memory back at once when a journal has them', () => {
  const results = new ChunkResults(null, [{ line: 1 }, { line: 2 }])
  for (const position of [0, 1])
    writeLine(results, position, { part: 'output', result: Buffer.alloc(41_000), audit: Buffer.alloc(500) })
  const [first, second] = results.entriesOf([0, 1])
  assert.ok(first && second && first.length > 41_000)
  results.forget([0], { key: 'journals/1', wrapped_key: '', bytes: 100_000 }, 0)
  assert.equal(first.length, 0)
  assert.ok(second.length > 41_000)
})
