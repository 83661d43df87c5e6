// Validation with few custom_ids in memory gives the same result, for any file, as validation with all of them.
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { test } from 'node:test'
import fc from 'fast-check'
import { temporaryDisk } from '../../test/support/temporary-disk.ts'
import type { Blobs } from '../blobs/blobs.ts'
import { masterKeyFromText } from '../blobs/master-key.ts'
import { type SealedBlobs, sealBlobs } from '../blobs/sealed.ts'
import { linesInIndex } from '../jsonl/custom-ids.ts'
import { StoredIds } from './stored-ids.ts'
import { ERRORS_COUNTED_MAX, ERRORS_LISTED_MAX, type Validation, validateContent } from './validation.ts'

fc.configureGlobal({ seed: 7 })

const LIMITS = { lines_max: 100_000, line_bytes_max: 10_000 }
const ENTRY_BYTES = 12

function lineOf(custom_id: string): string {
  const body = { model: 'sim-1', input: 'Hi' }
  return `${JSON.stringify({ custom_id, method: 'POST', url: '/v1/embeddings', body })}\n`
}

async function* blocksOf(lines: readonly string[], lines_per_block: number): AsyncGenerator<Buffer> {
  for (let at = 0; at < lines.length; at += lines_per_block)
    yield Buffer.from(lines.slice(at, at + lines_per_block).join(''))
}

function validate(
  lines: readonly string[],
  sealed: SealedBlobs,
  ids_in_memory_max: number,
  lines_per_block = 1,
): Promise<Validation> {
  const ids = new StoredIds(sealed, 'proj_1', 'files/file_1/ids')
  const limits = { ...LIMITS, ids_in_memory_max }
  return validateContent(() => blocksOf(lines, lines_per_block), limits, { ids }).finally(() => ids.discard())
}

async function keys(blobs: Blobs): Promise<string[]> {
  const found: string[] = []
  for await (const { key } of blobs.list('')) found.push(key)
  return found
}

test('however few custom_ids are in memory, a file is judged the same, and its index finds each line', async () => {
  await using disk = await temporaryDisk()
  const sealed = sealBlobs(disk.blobs, masterKeyFromText(randomBytes(32).toString('base64'), 'a test'))
  const line = fc.oneof(
    { weight: 20, arbitrary: fc.nat({ max: 60 }).map((i) => lineOf(`row-${i}`)) },
    fc.constantFrom('\n', '{}\n'),
  )
  await fc.assert(
    fc.asyncProperty(
      fc.array(line, { maxLength: 30 }),
      fc.integer({ min: 1, max: 9 }),
      async (lines, max) => {
        const whole = await validate(lines, sealed, 1000)
        const parts = await validate(lines, sealed, max)
        if (!whole.ok) return assert.deepEqual(parts, whole)
        assert(parts.ok && parts.custom_ids)
        const { custom_ids, ...rest } = parts
        const { custom_ids: _, ...expected } = whole
        assert.deepEqual(rest, expected)
        for (const [i, text] of lines.entries())
          if (text !== '\n')
            assert.deepEqual(
              await linesInIndex(custom_ids.bytes, JSON.parse(text).custom_id, (range) =>
                sealed.readAll('proj_1', custom_ids, range),
              ),
              [i + 1],
            )
      },
    ),
    { numRuns: 60 },
  )
  assert.deepEqual(await keys(disk.blobs), ['files/file_1/ids'])
})

test('the first lines with a custom_id of an earlier part are named, however many there are', async () => {
  await using disk = await temporaryDisk()
  const sealed = sealBlobs(disk.blobs, masterKeyFromText(randomBytes(32).toString('base64'), 'a test'))
  const count = 2 * ERRORS_COUNTED_MAX + 500
  const half = Array.from({ length: count }, (_, i) => lineOf(`row-${i}`))
  const verdict = await validate([...half, ...half], sealed, count, 500)
  assert(!verdict.ok)
  assert.equal(verdict.error_count, ERRORS_COUNTED_MAX)
  assert.match(verdict.details, /^Line 20501: The custom_id "row-0" was .* line 1\. .* at least 9999 more/)
  assert.deepEqual(
    verdict.errors.map(({ line }) => line),
    Array.from({ length: ERRORS_LISTED_MAX }, (_, i) => count + 1 + i),
  )
  assert.deepEqual(await keys(disk.blobs), [])
})

test('no more custom_ids are in memory at once in a file four times as long', async () => {
  await using disk = await temporaryDisk()
  const whole = sealBlobs(disk.blobs, masterKeyFromText(randomBytes(32).toString('base64'), 'a test'))
  const [max, lines_per_block] = [1000, 100]
  for (const count of [4_000, 16_000]) {
    const parts: number[] = []
    let readMax = 0
    const sealed: SealedBlobs = {
      ...whole,
      delete: (key) => whole.delete(key),
      read: (...order) => whole.read(...order),
      async put(...order) {
        const blob = await whole.put(...order)
        if (blob.key.includes('-part')) parts.push(blob.bytes / ENTRY_BYTES)
        return blob
      },
      async readAll(...order) {
        const bytes = await whole.readAll(...order)
        readMax = Math.max(readMax, bytes.length / ENTRY_BYTES)
        return bytes
      },
    }
    const lines = Array.from({ length: count }, (_, i) => lineOf(`row-${i}`))
    const verdict = await validate(lines, sealed, max, lines_per_block)
    assert(verdict.ok)
    assert.equal(verdict.custom_ids?.bytes, 8 + 8 * count)
    assert.deepEqual(parts, Array(count / max).fill(max))
    // A sixteenth of a part, more or less.
    assert(readMax < max / 8, `${readMax} entries were read of one part at once`)
  }
})
