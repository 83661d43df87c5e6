import assert from 'node:assert/strict'
import { test } from 'node:test'
import { rowLines } from './row-lines.ts'
import type { TableSource } from './table-bytes.ts'

function sourceOf(name: string, text: string): TableSource {
  const bytes = new Uint8Array(Buffer.from(text))
  return {
    name,
    byteLength: bytes.length,
    slice: async (start, end) => bytes.slice(start, end).buffer,
  }
}

async function made(
  source: TableSource,
  prompt: string,
  limits: Parameters<typeof rowLines>[2] = {},
): Promise<string> {
  const pieces: Buffer[] = []
  for await (const piece of rowLines(source, { asking: { model: 'm', prompt } }, limits)) pieces.push(piece)
  return Buffer.concat(pieces).toString()
}

test('a row that takes more memory than there is ends its process, and nothing else', async () => {
  const source = sourceOf('a.jsonl', `{"a":[${'[],'.repeat(1_500_000)}0]}\n`)
  await assert.rejects(made(source, '{{a}}', { heapMib: 24 }), /a\.jsonl cannot be read within 24 MiB/)
})

test('a prompt that multiplies a cell makes no request', async () => {
  const source = sourceOf('a.csv', `a\n${'x'.repeat(1024 * 1024)}\n`)
  await assert.rejects(made(source, '{{a}}'.repeat(400)), /row 1: its request is larger than 8 MiB/)
})

test('a process of which nothing comes is ended', async () => {
  const source = { ...sourceOf('a.csv', 'a\n1\n'), slice: () => new Promise<ArrayBuffer>(() => {}) }
  await assert.rejects(made(source, '{{a}}', { silentMs: 50 }), /no request of a\.csv was made for 0\.05 s/)
})

test('a slice that is too large is not read, and what the source throws is thrown', async () => {
  const source = sourceOf('a.csv', 'a\n1\n')
  await assert.rejects(made(source, '{{a}}', { sliceBytes: 2 }), /write it with smaller row groups/)
  const damaged = { ...source, slice: () => Promise.reject(new Error('damaged')) }
  await assert.rejects(made(damaged, '{{a}}'), /^Error: damaged$/)
})

test('a reader that stops early ends the process', async () => {
  const rows = Array.from({ length: 200_000 }, (_, i) => `row ${i}`).join('\n')
  for await (const piece of rowLines(sourceOf('a.csv', `a\n${rows}\n`), {
    asking: { model: 'm', prompt: '{{a}}' },
  })) {
    assert.match(piece.toString(), /^\{"custom_id":"row-1",/)
    break
  }
})
