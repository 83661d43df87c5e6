import assert from 'node:assert/strict'
import { test } from 'node:test'
import { writeLine } from '../../test/support/write-line.ts'
import { ChunkResults } from './chunk-results.ts'

test('results give their memory back at once when a journal has them', () => {
  const results = new ChunkResults(null, [{ line: 1 }, { line: 2 }])
  for (const position of [0, 1])
    writeLine(results, position, { part: 'output', result: Buffer.alloc(41_000), audit: Buffer.alloc(500) })
  const [first, second] = results.entriesOf([0, 1])
  assert.ok(first && second && first.length > 41_000)
  results.moveToJournal([0], { key: 'journals/1', wrapped_key: '', bytes: 100_000 }, 0)
  assert.equal(first.length, 0)
  assert.ok(second.length > 41_000)
})
