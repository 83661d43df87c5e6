import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { describe, test } from 'node:test'
import fc from 'fast-check'
import { temporaryDisk } from '../../test/support/temporary-disk.ts'
import { type WrittenLine, writeLine } from '../../test/support/write-line.ts'
import type { Blobs } from '../blobs/blobs.ts'
import { masterKeyFromText } from '../blobs/master-key.ts'
import { type SealedBlob, type SealedBlobs, sealBlobs } from '../blobs/sealed.ts'
import { ChunkResults } from './chunk-results.ts'
import { findJournalled, JOURNAL_OWNER, type Journalled } from './journal.ts'
import type { Span } from './line-index.ts'
import { encodeLineIndex, placesInBlobs, readLineIndex } from './line-index.ts'
import { sealChunk } from './seal.ts'

const master = masterKeyFromText(randomBytes(32).toString('base64'), 'a test')
const CHUNK = { project_id: 'proj_1', batch_id: 'batch_1', idx: 0 }
const MIB = 1024 * 1024

interface Line extends WrittenLine {
  line: number
}

function written(line: number, part: 'output' | 'error', bytes: number): Line {
  return {
    line,
    part,
    result: Buffer.from(`{"line":${line},"is":"${'r'.repeat(bytes)}"}\n`),
    audit: Buffer.from(`{"record":${line}}\n`),
  }
}

/** The results of lines that finished in this order. */
function resultsOf(lines: readonly Line[]): ChunkResults {
  const results = new ChunkResults(null, lines)
  for (const [position, line] of lines.entries()) writeLine(results, position, line)
  return results
}

/** A journal of lines, and the bytes of its entries. */
async function writeJournal(
  sealed: SealedBlobs,
  key: string,
  lines: readonly Line[],
): Promise<{ blob: SealedBlob; bytes: number }> {
  const results = resultsOf(lines)
  const { positions, bytes } = results.takeFresh()
  const pieces = [...results.entriesOf(positions), encodeLineIndex(results.sizes(positions))]
  return { blob: await sealed.put(JOURNAL_OWNER, key, pieces), bytes }
}

/** The span of all entries of a journal. */
function whole(blob: SealedBlob, bytes: number) {
  return { part: { byte_start: 0, byte_end: bytes }, blob }
}

describe('sealing', () => {
  test('what was gathered to be sealed, and then the results, give their memory back at once', async () => {
    await using disk = await temporaryDisk()
    const sealed = sealBlobs(disk.blobs, master)
    const results = resultsOf([written(1, 'output', 4 * MIB), written(2, 'error', MIB)])
    const pieces: Uint8Array[] = []
    let most = 0
    const put: SealedBlobs['put'] = (project_id, key, source, isGiven) => {
      function* seen(): Generator<Uint8Array> {
        for (const piece of source as Iterable<Uint8Array>) {
          pieces.push(piece)
          most = Math.max(most, pieces.filter(({ length }) => length > 0).length)
          yield piece
        }
      }
      return sealed.put(project_id, key, seen(), isGiven)
    }
    const result = results.fieldOf(0, 'result')
    const { seal } = await sealChunk({ ...sealed, put }, CHUNK, 'a', results)
    assert.equal(seal.output_bytes, written(1, 'output', 4 * MIB).result.length)
    assert.equal(pieces.length, 17 + 5 + 1)
    assert.equal(pieces.filter(({ length }) => length > 0).length, 0)
    assert.ok(most <= 14, `${most} frames were in memory at once`)
    assert.ok(result instanceof Uint8Array && result.length > 4 * MIB)
    results.free()
    assert.equal(result.length, 0)
  })

  test('lines from memory and from journals are written in input order, and the index has their places', async () => {
    await using disk = await temporaryDisk()
    const sealed = sealBlobs(disk.blobs, master)
    const line = fc.record({
      part: fc.constantFrom('output' as const, 'error' as const),
      bytes: fc.oneof(fc.integer({ min: 0, max: 500 }), fc.integer({ min: 0, max: MIB })),
      home: fc.integer({ min: 0, max: 2 }),
    })
    let run = 0
    await fc.assert(
      fc.asyncProperty(fc.array(line, { minLength: 1, maxLength: 12 }), async (shapes) => {
        const lines = shapes.map(({ part, bytes }, i) => written(i + 1, part, bytes))
        const homeOf = (home: number): Line[] => lines.filter((_, i) => shapes[i]!.home === home).reverse()
        const journalled: Journalled[] = []
        for (const home of [1, 2]) {
          const { blob, bytes } = await writeJournal(sealed, `journals/${++run}`, homeOf(home))
          journalled.push(...(await findJournalled(sealed, whole(blob, bytes))))
        }
        const results = new ChunkResults(null, lines, journalled)
        for (const line of homeOf(0)) writeLine(results, line.line - 1, line)
        const { seal, blobs } = await sealChunk(sealed, CHUNK, String(++run), results)
        const content = async (key: string | null): Promise<Buffer> => {
          const blob = blobs.find((one) => one.key === key)
          return blob ? await sealed.readAll(CHUNK.project_id, blob) : Buffer.alloc(0)
        }
        const texts = {
          output: await content(seal.output_blob),
          error: await content(seal.error_blob),
          audit: await content(seal.audit_blob),
        }
        for (const part of ['output', 'error'] as const)
          assert.ok(
            texts[part].equals(
              Buffer.concat(lines.filter((one) => one.part === part).map((one) => one.result)),
            ),
          )
        const audit = blobs.find((one) => one.key === seal.audit_blob)
        const index = audit && (await readLineIndex(sealed, CHUNK.project_id, audit))
        assert.ok(index)
        const blobOf = (key: string | null) => blobs.find((one) => one.key === key)
        const ofParts = { output: blobOf(seal.output_blob), error: blobOf(seal.error_blob) }
        const places = placesInBlobs(index, { project_id: CHUNK.project_id, audit, ...ofParts })
        const read = (span: Span | null) => span && sealed.readAll(span.project_id, span.blob, span.range)
        for (const [i, place] of places.entries()) {
          assert.ok((await read(place.result))?.equals(lines[i]!.result))
          assert.ok((await read(place.audit))?.equals(lines[i]!.audit))
        }
      }),
      { numRuns: 25 },
    )
  })

  test('lines from journals are streamed, without more than a window in memory', async () => {
    await using disk = await temporaryDisk()
    const sealed = sealBlobs(disk.blobs, master)
    const journalled: Journalled[] = []
    for (let at = 0; at < 10; at++) {
      const lines = Array.from({ length: 10 }, (_, i) => written(1 + i * 10 + at, 'output', MIB / 2))
      const { blob, bytes } = await writeJournal(sealed, `journals/${at}`, lines)
      journalled.push(...(await findJournalled(sealed, whole(blob, bytes))))
    }
    const numbers = Array.from({ length: 100 }, (_, i) => ({ line: i + 1 }))
    const results = new ChunkResults(null, numbers, journalled)
    let ahead = 0
    let peak = 0
    const watched: SealedBlobs = {
      async put(project_id, key, source) {
        return await sealed.put(
          project_id,
          key,
          (async function* () {
            for await (const piece of source) {
              yield piece
              ahead -= piece.length
            }
          })(),
        )
      },
      async readAll(project_id, blob, range) {
        const bytes = await sealed.readAll(project_id, blob, range)
        ahead += bytes.length
        peak = Math.max(peak, ahead)
        return bytes
      },
      read: () => assert.fail('a short line is read with its neighbours'),
      delete: () => assert.fail('nothing is deleted'),
    }
    const { seal } = await sealChunk(watched, CHUNK, 'a', results)
    assert.ok(seal.output_bytes > 50 * MIB)
    assert.ok(peak < 3 * MIB, `${peak} bytes were read ahead`)
  })
})

describe('a journal', () => {
  test('has an index by which the entries of a part are found without reading it', async () => {
    await using disk = await temporaryDisk()
    const { blobs, read } = counting(disk.blobs)
    const sealed = sealBlobs(blobs, master)
    const first = Array.from({ length: 30 }, (_, i) => written(i + 1, i % 3 ? 'output' : 'error', 400_000))
    const second = Array.from({ length: 3 }, (_, i) => written(i + 7, 'output', 10))
    const { blob, bytes } = await writeJournal(sealed, 'journals/1', [...first, ...second])
    const border = resultsOf(first).fresh.bytes
    for (const [byte_start, byte_end, lines] of [
      [0, border, first],
      [border, bytes, second],
    ] as const) {
      const part = { part: { byte_start, byte_end }, blob }
      read.bytes = 0
      const found = await findJournalled(sealed, part)
      assert.ok(read.bytes < 600_000, `${read.bytes} bytes were read to find them`)
      assert.deepEqual(
        found.map(({ line }) => line),
        lines.map(({ line }) => line),
      )
      for (const [i, { result, audit }] of found.entries()) {
        assert.ok((await sealed.readAll(JOURNAL_OWNER, blob, result.range)).equals(lines[i]!.result))
        assert.ok((await sealed.readAll(JOURNAL_OWNER, blob, audit.range)).equals(lines[i]!.audit))
      }
    }
  })
})

/** Counts the stored bytes that are read. */
function counting(blobs: Blobs): { blobs: Blobs; read: { bytes: number } } {
  const read = { bytes: 0 }
  return {
    read,
    blobs: {
      put: (key, source) => blobs.put(key, source),
      size: (key) => blobs.size(key),
      delete: (key) => blobs.delete(key),
      list: (prefix) => blobs.list(prefix),
      async *read(key, range) {
        for await (const piece of blobs.read(key, range)) {
          read.bytes += piece.length
          yield piece
        }
      },
    },
  }
}
