import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { customIdIndex, type Entries, HashSet64, linesInIndex, SeededHash } from './custom-ids.ts'

fc.configureGlobal({ seed: 7 })

test('the set behaves as a Set, the zero hash and crowded slots included', () => {
  const half = fc.oneof(fc.constantFrom(0, 1, 128, 256, 0xffffffff), fc.nat({ max: 5 }), fc.nat())
  fc.assert(
    fc.property(fc.array(fc.tuple(half, half), { maxLength: 100 }), (hashes) => {
      const set = new HashSet64()
      const model = new Set<string>()
      for (const [lo, hi] of hashes) {
        // (0, 0) and (1, 0) count as one hash.
        const key = hi === 0 && lo < 2 ? '1,0' : `${lo},${hi}`
        assert.equal(set.has(lo, hi), model.has(key))
        assert.equal(set.add(lo, hi), !model.has(key))
        model.add(key)
        assert.ok(set.has(lo, hi))
      }
    }),
  )
})

test('the set keeps what it has while it grows', () => {
  const set = new HashSet64()
  const hash = (i: number): [number, number] => [Math.imul(i, 0x9e3779b1) >>> 0, i]
  for (let i = 1; i <= 20_000; i++) assert.ok(set.add(...hash(i)))
  for (let i = 1; i <= 20_000; i++) assert.ok(!set.add(...hash(i)))
  assert.ok(!set.has(...hash(20_001)))
})

test('ids that differ little have hashes that differ', () => {
  const hash = new SeededHash(new Uint32Array([1, 2]))
  const whole = new HashSet64()
  const roles = new Set<number>()
  const bytes = Buffer.alloc(64)
  const COUNT = 100_000
  for (let i = 0; i < COUNT; i++) {
    const length = bytes.write(`request-${i}`)
    hash.read(bytes, 0, length)
    assert.ok(whole.add(hash.lo, hash.hi))
    roles.add(hash.lo)
  }
  // A good 32-bit half of so many ids collides about once.
  assert.ok(roles.size > COUNT - 20)
  hash.read(Buffer.from('abc\0'), 0, 4)
  const padded = [hash.lo, hash.hi]
  hash.read(Buffer.from('abc'), 0, 3)
  assert.notDeepEqual([hash.lo, hash.hi], padded)
})

test('an index finds every line of 100,000 by its custom_id with two small reads', async () => {
  const hash = new SeededHash()
  const ids = new HashSet64()
  const add = (id: string, line: number): void => {
    const bytes = Buffer.from(id)
    hash.read(bytes, 0, bytes.length)
    ids.add(hash.lo, hash.hi, line)
  }
  const COUNT = 100_000
  for (let i = 1; i <= COUNT; i++) add(`row-${i}`, 2 * i)
  const index = await indexOf(hash, ids.drain())
  assert.equal(index.length, 8 + 8 * COUNT)
  let [reads, bytes] = [0, 0]
  const linesOf = (id: string): Promise<number[]> =>
    linesInIndex(index.length, id, async ({ start, end }) => {
      reads++
      bytes += end - start
      return index.subarray(start, end)
    })
  const asked = 500
  for (let i = 0; i < asked; i++) {
    const row = 1 + ((i * 7919) % COUNT)
    assert.ok((await linesOf(`row-${row}`)).includes(2 * row))
  }
  assert.deepEqual(await linesOf(`row-${COUNT + 1}`), [])
  assert.equal(reads, 2 * (asked + 1))
  assert.ok(bytes / asked < 32 * 1024, `${bytes / asked} bytes a line`)
  for (const count of [0, 1, 2, 50]) {
    const few = new HashSet64()
    for (let i = 1; i <= count; i++) {
      const id = Buffer.from(`row-${i}`)
      hash.read(id, 0, id.length)
      few.add(hash.lo, hash.hi, i)
    }
    const small = await indexOf(hash, few.drain())
    const read = async ({ start, end }: { start: number; end: number }): Promise<Buffer> =>
      small.subarray(start, end)
    for (let i = 1; i <= count; i++) assert.deepEqual(await linesInIndex(small.length, `row-${i}`, read), [i])
    assert.deepEqual(await linesInIndex(small.length, 'none', read), [])
  }
})

/** The index of these parts of a file. */
async function indexOf(hash: SeededHash, ...parts: Entries[][]): Promise<Buffer> {
  const pieces: Uint8Array[] = []
  const partsOf = async (shard: number): Promise<Entries[]> => parts.map((part) => part[shard]!)
  for await (const piece of customIdIndex(hash.seed, partsOf, () => assert.fail()))
    pieces.push(Buffer.from(piece))
  return Buffer.concat(pieces)
}

test('another seed gives other hashes', () => {
  const id = Buffer.from('request-1')
  const read = (seed: number[]): number[] => {
    const hash = new SeededHash(new Uint32Array(seed))
    hash.read(id, 0, id.length)
    return [hash.lo, hash.hi]
  }
  assert.deepEqual(read([1, 2]), read([1, 2]))
  assert.notDeepEqual(read([1, 2]), read([1, 3]))
  assert.notDeepEqual(read([1, 2]), read([2, 2]))
})
