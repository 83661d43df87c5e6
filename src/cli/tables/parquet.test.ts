import assert from 'node:assert/strict'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { brotliCompressSync, gzipSync, zstdCompressSync } from 'node:zlib'
import { parquetWriteBuffer } from 'hyparquet-writer'
import { answerColumns, answerSchema, type ResultRow } from '../../tables/answer-cells.ts'
import { openParquet } from '../../tables/parquet-reader.ts'
import { type Cell, type Column, cellText, type TableReader } from '../../tables/table.ts'
import { createTable, fileSource, openTable } from './open-table.ts'

/** A file by pyarrow 26 with zstd: three rows of every common type; the second is null where the type allows. */
const TYPES = fileURLToPath(new URL('../../../test/fixtures/types.parquet', import.meta.url))

async function texts(table: TableReader): Promise<Record<string, string[]>> {
  const found: Record<string, string[]> = Object.fromEntries(table.columns.map(({ name }) => [name, []]))
  for await (const { cells } of table.rows())
    for (const [i, { name }] of table.columns.entries())
      found[name]?.push(cells[i] === null ? 'null' : cellText(cells[i]))
  return found
}

describe('a Parquet file', () => {
  let folder: string
  let copies = 0
  before(async () => {
    folder = await mkdtemp(join(tmpdir(), 'offpeak-parquet-'))
  })
  after(() => rm(folder, { recursive: true }))

  async function copied(
    table: TableReader,
    columns: readonly Column[] = table.columns,
  ): Promise<TableReader> {
    const path = join(folder, `copy-${++copies}.parquet`)
    const writer = await createTable(path, 'parquet', columns)
    for await (const row of table.rows()) await writer.write(row)
    await writer.end()
    return await openTable(path)
  }

  test('is read without losing a digit', async () => {
    const found = await texts(await openTable(TYPES))
    assert.partialDeepStrictEqual(found, {
      i64: ['4611686018427387904', 'null', '-4611686018427387904'],
      u64: ['18446744073709551615', '0', 'null'],
      s: ['a', '', 'ünï'],
      bin: ['AP8=', 'null', ''],
      dec: ['123456789012345678.123456789', 'null', '-0.000000001'],
      dec32: ['1.25', 'null', '-9.99'],
      date: ['2024-02-29', 'null', '1969-12-31'],
      ts_us: ['2024-01-02T03:04:05.678901', 'null', '1960-01-01T00:00:00'],
      ts_ns: ['2023-11-14T22:13:20.123456789Z', 'null', '1969-12-31T23:59:59.999999999Z'],
      t: ['01:02:03.000004', 'null', '23:59:00'],
      list: ['["a","b"]', 'null', '[]'],
      struct: ['{"a":1,"b":"x"}', 'null', '{"a":null,"b":null}'],
      map: ['{"k":1}', 'null', '{}'],
      nul: ['null', 'null', 'null'],
    })
  })

  test('is written with the types and values that were read', async () => {
    const table = await openTable(TYPES)
    const again = await copied(table)
    assert.deepEqual(await texts(again), await texts(table))
    const typeOf = ({ name, type, parquet }: Column): unknown => [name, type, parquet?.declared]
    // A map becomes text with JSON, and so do times in a list.
    const kept = (columns: readonly Column[]): unknown[] =>
      columns.filter(({ name }) => name !== 'map' && name !== 'lts').map(typeOf)
    assert.deepEqual(kept(again.columns), kept(table.columns))
  })

  test('has a column of the declared type for each new column', async () => {
    const columns: Column[] = [
      { name: 'n', type: 'integer' },
      { name: 'x', type: 'number' },
      { name: 'b', type: 'boolean' },
      { name: 'j', type: 'json' },
    ]
    const rows: Cell[][] = [
      [1, 1, true, { a: [1] }],
      [-(2n ** 63n), 0.5, false, 'text'],
      [null, null, null, null],
    ]
    const table: TableReader = {
      columns,
      async *rows() {
        for (const cells of rows) yield { cells }
      },
    }
    const again = await copied(table)
    assert.deepEqual(
      again.columns.map(({ type }) => type),
      ['integer', 'number', 'boolean', 'string'],
    )
    assert.deepEqual(await texts(again), {
      n: ['1', '-9223372036854775808', 'null'],
      x: ['1', '0.5', 'null'],
      b: ['true', 'false', 'null'],
      j: ['{"a":[1]}', '"text"', 'null'],
    })
  })

  test('has native lists for columns that hold lists, and for arrays of a schema', async () => {
    const rows = [
      '{"tags":["a","b"],"n":[1,2.5],"deep":[[1],[],null],"mixed":[1,"x"],"objects":[{"a":1},null],"some":[]}',
      '{"tags":[],"n":null,"deep":[],"mixed":[],"objects":[],"some":"text"}',
      '{"tags":[null,"ü"],"n":[3],"deep":null,"mixed":null,"objects":null,"none":[]}',
    ]
    await writeFile(join(folder, 'rows.jsonl'), `${rows.join('\n')}\n`)
    const again = await copied(await openTable(join(folder, 'rows.jsonl')))
    const shape = ({ parquet }: Column): unknown =>
      parquet?.declared.map(({ name, type, converted_type }) => [name, type ?? converted_type])
    const list = (name: string, ...items: unknown[]): unknown[] => [
      [name, 'LIST'],
      ['list', undefined],
      ...items,
    ]
    assert.deepEqual(again.columns.map(shape), [
      list('tags', ['element', 'BYTE_ARRAY']),
      list('n', ['element', 'DOUBLE']),
      list('deep', ...list('element', ['element', 'INT64'])),
      list('mixed', ['element', 'BYTE_ARRAY']),
      list('objects', ['element', 'BYTE_ARRAY']),
      [['some', 'BYTE_ARRAY']],
      list('none', ['element', 'BYTE_ARRAY']),
    ])
    assert.deepEqual(await texts(again), {
      tags: ['["a","b"]', '[]', '[null,"ü"]'],
      n: ['[1,2.5]', 'null', '[3]'],
      deep: ['[[1],[],null]', '[]', 'null'],
      mixed: ['["1","\\"x\\""]', '[]', 'null'],
      objects: ['["{\\"a\\":1}",null]', '[]', 'null'],
      some: ['[]', '"text"', 'null'],
      none: ['null', 'null', '[]'],
    })
    const twice = await copied(again)
    assert.deepEqual(await texts(twice), await texts(again))

    const field = { type: ['array', 'null'], items: { type: 'array', items: { enum: ['x', 'y'] } } }
    const schema = answerSchema({
      properties: { label: { type: 'string' }, at: field, any: { type: 'array' } },
    })
    assert.deepEqual(
      schema?.fields.map(({ type }) => type),
      ['string', { items: { items: 'string' } }, { items: 'json' }],
    )
    const { cells } = answerColumns(schema ?? undefined, '')
    const answer = (content: object): ResultRow => {
      const body = { choices: [{ message: { content: JSON.stringify(content) } }] }
      return { id: '', custom_id: '', response: { status_code: 200, body } }
    }
    assert.deepEqual(
      await cells([answer({ at: [['x'], null], any: [1, 'a'] }), answer({ at: [['x', 1]], any: {} })]),
      [
        [null, [['x'], null], [1, 'a'], null],
        [
          ...[null, null, null],
          'not_schema: at is [["x",1]], not a list in which each item is a list in which each item is a string; any is {}, not a list',
        ],
      ],
    )
  })

  test('is read however its pages are compressed', async () => {
    const data = Array.from({ length: 50 }, (_, i) => `text ${i % 7}`)
    for (const [codec, compress] of [
      ['GZIP', gzipSync],
      ['BROTLI', brotliCompressSync],
      ['ZSTD', zstdCompressSync],
    ] as const) {
      const path = join(folder, `${codec}.parquet`)
      const bytes = parquetWriteBuffer({
        columnData: [{ name: 's', data }],
        codec,
        compressors: { [codec]: (page: Uint8Array) => compress(page) },
      })
      await writeFile(path, new Uint8Array(bytes))
      assert.deepEqual((await texts(await openTable(path))).s, data, codec)
    }
  })

  test('with many rows is read in parts of a row group, each row once and in order', async () => {
    const columns: Column[] = [
      { name: 'n', type: 'integer' },
      { name: 's', type: 'string' },
    ]
    const count = 45_000
    const path = join(folder, 'many.parquet')
    const writer = await createTable(path, 'parquet', columns)
    for (let n = 0; n < count; n++) await writer.write({ cells: [n, n % 7 === 0 ? null : `text ${n}`] })
    await writer.end()
    const table = await openParquet(await fileSource(path), { partBytes: 200_000 })
    let n = 0
    for await (const { cells } of table.rows()) {
      if (cells[0] !== BigInt(n) || cells[1] !== (n % 7 === 0 ? null : `text ${n}`))
        assert.fail(`row ${n} is ${cells.map(cellText)}`)
      n++
    }
    assert.equal(n, count)
  })
})
