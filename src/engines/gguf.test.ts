import assert from 'node:assert/strict'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, test } from 'node:test'
import { readGguf } from './gguf.ts'
import { slotsOf } from './recipes.ts'

const folder = mkdtempSync(join(tmpdir(), 'offpeak-gguf-'))
after(() => rmSync(folder, { recursive: true }))

function long(value: number): Buffer {
  const bytes = Buffer.alloc(8)
  bytes.writeBigUInt64LE(BigInt(value))
  return bytes
}

function word(value: number): Buffer {
  const bytes = Buffer.alloc(4)
  bytes.writeUInt32LE(value)
  return bytes
}

function text(value: string): Buffer {
  return Buffer.concat([long(Buffer.byteLength(value)), Buffer.from(value)])
}

/** A GGUF file. Values are texts, whole numbers, or lists of whole numbers. */
function gguf(metadata: Record<string, string | number | number[]>): Buffer {
  const entries = Object.entries(metadata).map(([key, value]) => {
    if (typeof value === 'string') return Buffer.concat([text(key), word(8), text(value)])
    if (typeof value === 'number') return Buffer.concat([text(key), word(4), word(value)])
    return Buffer.concat([text(key), word(9), word(4), long(value.length), ...value.map(word)])
  })
  return Buffer.concat([Buffer.from('GGUF'), word(3), long(0), long(entries.length), ...entries])
}

function file(content: Buffer): string {
  const path = join(folder, 'model.gguf')
  writeFileSync(path, content)
  return path
}

const SMALL = {
  'general.architecture': 'llama',
  'llama.block_count': 30,
  'llama.context_length': 8192,
  'llama.embedding_length': 576,
  'llama.attention.head_count': 9,
  'llama.attention.head_count_kv': 3,
}

test('context and cache are read from the metadata', async () => {
  const found = await readGguf(file(gguf(SMALL)))
  assert.equal(found?.context_length, 8192)
  assert.equal(found.cache_bytes_per_token, 30 * 3 * 64 * 2 * 2)
})

test('layers with different numbers of heads are added up, and stated widths count', async () => {
  const found = await readGguf(
    file(
      gguf({
        ...SMALL,
        'llama.attention.head_count_kv': [0, 2, 4],
        'llama.attention.key_length': 32,
        'llama.attention.value_length': 16,
      }),
    ),
  )
  assert.equal(found?.cache_bytes_per_token, 6 * 48 * 2)
})

test('a file that is cut off says what it holds, and another file is no GGUF file', async () => {
  const whole = gguf({ ...SMALL, 'tokenizer.ggml.tokens': 'x'.repeat(1000) })
  assert.equal((await readGguf(file(whole.subarray(0, whole.length - 900))))?.context_length, 8192)
  assert.equal(await readGguf(file(Buffer.from('{"custom_id":"a", "url":"/v1/chat"}'))), null)
  assert.equal(await readGguf(file(Buffer.alloc(0))), null)
})

test('slots fit into the memory, and their context fits the longest request', () => {
  const model = { bytes: 2 ** 30, context_length: 8192, cache_bytes_per_token: 100_000 }
  const machine = { freeBytes: 8 * 2 ** 30, hasGpu: false }
  assert.deepEqual(slotsOf(model, 700, machine), { slots: 8, contextEach: 1024 })
  assert.deepEqual(slotsOf(model, 100_000, machine), { slots: 6, contextEach: 8192 })
  assert.deepEqual(slotsOf(model, 700, { freeBytes: 0, hasGpu: false }), { slots: 1, contextEach: 1024 })
  assert.deepEqual(slotsOf(model, 1025, { freeBytes: 2 ** 40, hasGpu: true }), {
    slots: 32,
    contextEach: 1280,
  })
})
