import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
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
