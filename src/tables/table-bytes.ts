// Reads the bytes of a table from a file or a blob, decompressed by its name, and detects its text encoding for
// messages.
import { pipeline, Readable } from 'node:stream'
import { createGunzip, createZstdDecompress } from 'node:zlib'
import { compressionOf, TableError } from './table.ts'

/**
 * The bytes of a table, in memory, a file or a blob. `name`: its ending gives format and compression; messages begin
 * with it.
 */
export interface TableSource {
  name: string
  byteLength: number
  slice(start: number, end?: number): Promise<ArrayBuffer>
}

const BLOCK_BYTES = 256 * 1024
/** The default of `limits.file_bytes_max`, the most bytes of a table: a small file may expand to any size. */
const EXPANDED_BYTES_MAX = 10 * 1024 ** 3

/** Decompresses a table; to be read to the end, or returned. Throws a TableError for bad compression or excess size. */
export async function* tableBytes(
  source: TableSource,
  bytesMax = EXPANDED_BYTES_MAX,
): AsyncGenerator<Buffer> {
  const { name } = source
  const compression = compressionOf(name)
  if (compression === null) return yield* blocksOf(source)
  const options = { chunkSize: BLOCK_BYTES }
  const decoder = compression === 'gz' ? createGunzip(options) : createZstdDecompress(options)
  const blocks = Readable.from(blocksOf(source), { objectMode: false })
  let bytes = 0
  try {
    // The reader of the decoder gets its error.
    const expanded: AsyncIterable<Buffer> = pipeline(blocks, decoder, () => {})
    for await (const block of expanded) {
      bytes += block.length
      if (bytes > bytesMax)
        throw new TableError(
          `${name} expands to more than ${bytesMax / 1024 ** 3} GiB; split it, or decompress it first if that is right`,
        )
      yield block
    }
  } catch (error) {
    const code = error instanceof Error && 'code' in error ? String(error.code) : ''
    if (!(error instanceof Error) || !/^(Z_|ZSTD_)/.test(code)) throw error
    throw new TableError(
      `${name} cannot be decompressed (${error.message}); is it complete, and as its name says?`,
    )
  } finally {
    blocks.destroy()
    decoder.destroy()
  }
}

async function* blocksOf(source: TableSource): AsyncGenerator<Buffer> {
  for (let at = 0; at < source.byteLength; at += BLOCK_BYTES)
    yield Buffer.from(await source.slice(at, Math.min(at + BLOCK_BYTES, source.byteLength)))
}

/** Reads the first `bytes` decompressed bytes of a table. */
export async function tableHead(source: TableSource, bytes: number): Promise<Buffer> {
  const blocks: Buffer[] = []
  let length = 0
  for await (const block of tableBytes(source)) {
    blocks.push(block)
    length += block.length
    if (length >= bytes) break
  }
  return Buffer.concat(blocks).subarray(0, bytes)
}

type Utf16 = 'utf-16le' | 'utf-16be'

/** Detects UTF-16 by its byte-order mark. */
export function markedUtf16(head: Buffer): Utf16 | undefined {
  const mark = head.length < 2 ? 0 : head.readUInt16BE(0)
  return mark === 0xfffe ? 'utf-16le' : mark === 0xfeff ? 'utf-16be' : undefined
}

/** Throws a TableError for UTF-16, in which often every other byte is zero; UTF-8 text has no zero bytes. */
export function refuseUtf16(name: string, head: Buffer): void {
  const zeros = [0, 0]
  for (let at = 0; at < head.length; at++) if (head[at] === 0) zeros[at % 2]!++
  const [even = 0, odd = 0] = zeros
  const isLittle = odd > head.length / ZEROS_PER && even < odd / ZEROS_PER
  const isBig = even > head.length / ZEROS_PER && odd < even / ZEROS_PER
  const encoding = markedUtf16(head) ?? (isLittle ? 'utf-16le' : isBig ? 'utf-16be' : undefined)
  if (encoding === undefined) return
  throw new TableError(
    `${name} is UTF-16; save it as UTF-8, for example with: iconv -f ${encoding.toUpperCase()} -t UTF-8 ${name}`,
  )
}

/** The most bytes for each zero in UTF-16: delimiters and line breaks have a zero in every script. */
const ZEROS_PER = 20
