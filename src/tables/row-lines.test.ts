import assert from 'node:assert/strict'
import { text } from 'node:stream/consumers'
import { test } from 'node:test'
import { zstdCompressSync } from 'node:zlib'
import { parquetMetadata } from 'hyparquet'
import { parquetWriteBuffer } from 'hyparquet-writer'
import { rowLines } from './row-lines.ts'
import type { TableSource } from './table-bytes.ts'

function sourceOf(name: string, content: string | Buffer): TableSource {
  const bytes = new Uint8Array(Buffer.from(content))
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
  return await text(rowLines(source, { asking: { model: 'm', prompt } }, limits))
}

test('a row that takes more memory than there is ends its process, and nothing else', async () => {
  const source = sourceOf('a.jsonl', `{"a":[${'[],'.repeat(1_500_000)}0]}\n`)
  await assert.rejects(made(source, '{{a}}', { heapMib: 24 }), /a\.jsonl cannot be read within 24 MiB/)
})

test('a prompt that multiplies a cell makes no request', async () => {
  const source = sourceOf('a.csv', `a\n${'x'.repeat(1024 * 1024)}\n`)
  await assert.rejects(made(source, '{{a}}'.repeat(400)), /row 1: its request is larger than 8 MiB/)
})

test('a small Parquet file that expands to more than there is makes no request', async () => {
  const MIB = 1024 ** 2
  const parquet = (mib: number, compress: (page: Uint8Array) => Uint8Array) =>
    Buffer.from(
      parquetWriteBuffer({
        columnData: Array.from({ length: 6 }, (_, i) => ({ name: `c${i}`, data: ['x'.repeat(mib * MIB)] })),
        codec: 'ZSTD',
        compressors: { ZSTD: compress },
        statistics: false,
      }),
    )
  const wide = parquet(8, (page) => zstdCompressSync(page))
  assert.ok(wide.length < MIB)
  const said = /a\.parquet cannot be read as a Parquet file \(its columns take more than 52 MiB; write/
  await assert.rejects(made(sourceOf('a.parquet', wide), '{{c0}}', { memoryMib: 52 }), said)
  // The page declares a small size.
  const bomb = parquet(1, () => zstdCompressSync(Buffer.alloc(64 * MIB)))
  await assert.rejects(
    made(sourceOf('a.parquet', bomb), '{{c0}}'),
    /a\.parquet cannot be read as a Parquet file \(Cannot create a Buffer larger than/,
  )
})

test('the columns of a Parquet file are read one after the other, a piece at a time', async () => {
  const columnData = Array.from({ length: 60 }, (_, i) => ({
    name: `c${i}`,
    data: Array.from({ length: 50 }, (_, row) => `${i} ${row} `.repeat(400)),
  }))
  const file = parquetWriteBuffer({ columnData, codec: 'UNCOMPRESSED', statistics: false })
  const source = sourceOf('a.parquet', Buffer.from(file))
  let open = 0
  let most = 0
  let largest = 0
  const slice: TableSource['slice'] = async (start, end = source.byteLength) => {
    most = Math.max(most, ++open)
    largest = Math.max(largest, end - start)
    const bytes = await source.slice(start, end)
    await new Promise((resolve) => setImmediate(resolve))
    open--
    return bytes
  }
  const lines = await made({ ...source, slice }, '{{c0}}{{c59}}')
  assert.equal(lines.trimEnd().split('\n').length, 50)
  assert.match(lines, /"content":"0 0 .*59 0 /)
  assert.equal(most, 1)
  assert.ok(largest <= 2 * 1024 ** 2)
})

test('columns that share bytes are refused, the same and shifted ones', async () => {
  const columnData = ['a', 'b'].map((name) => ({ name, data: ['x'.repeat(1_000)] }))
  const file = Buffer.from(parquetWriteBuffer({ columnData, codec: 'UNCOMPRESSED', statistics: false }))
  const metadata = parquetMetadata(new Uint8Array(file).buffer)
  const [, second] = metadata.row_groups[0]?.columns ?? []
  const at = Number(second?.meta_data?.data_page_offset)
  // Where the second column begins, as the metadata has it: a number of two bytes, which becomes one less, or that of the first.
  const said = Buffer.of(((2 * at) & 0x7f) | 0x80, (2 * at) >> 7)
  for (const begin of [4, at - 1]) {
    const copy = Buffer.from(file)
    for (let i = copy.indexOf(said, at + 500); i !== -1; i = copy.indexOf(said, i + 1))
      Buffer.of(((2 * begin) & 0x7f) | 0x80, (2 * begin) >> 7).copy(copy, i)
    await assert.rejects(made(sourceOf('a.parquet', copy), '{{a}}'), /two of its columns share bytes/)
  }
})

test('a table has a time in all, and is ended when its caller leaves', async () => {
  const rows = `a\n${Array.from({ length: 300_000 }, (_, i) => `row ${i}`).join('\n')}\n`
  const source = sourceOf('a.csv', rows)
  await assert.rejects(made(source, '{{a}}', { totalMs: 1 }), /a\.csv takes more than 0\.001 s to read/)
  const caller = new AbortController()
  const lines = rowLines(source, { asking: { model: 'm', prompt: '{{a}}' } }, {}, caller.signal)
  await lines.next()
  caller.abort(new Error('left'))
  await assert.rejects(Array.fromAsync(lines), /left/)
})

test('two columns of one name are refused, however many columns there are', async () => {
  const parquet = parquetWriteBuffer({
    columnData: ['a', 'b', 'a'].map((name) => ({ name, data: [name] })),
  })
  const twice = sourceOf('a.parquet', Buffer.from(parquet))
  await assert.rejects(made(twice, '{{a}}'), /^Error: a\.parquet has two columns named "a"; give each/)
  const names = Array.from({ length: 30_000 }, (_, i) => `c${i}`)
  const wide = sourceOf('a.csv', `${names}\n${names}\n`)
  assert.match(await made(wide, '{{c29999}}', { silentMs: 15_000 }), /"content":"c29999"/)
  const long = sourceOf('a.csv', `${'\0'.repeat(100_000)}\n1\n`)
  await assert.rejects(made(long, '{{a}}'), ({ message }: Error) => message.length < 300)
})

test('a cell that is nested too deeply for a request is named', async () => {
  const deep = sourceOf('a.jsonl', `{"a":${'['.repeat(20_000)}${']'.repeat(20_000)}}\n`)
  await assert.rejects(made(deep, '{{a}}'), /a\.jsonl, line 1 nests deeper than 100 levels/)
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
