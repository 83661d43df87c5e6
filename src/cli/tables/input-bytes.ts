// The bytes of an input file, decompressed where its name says that they are compressed; and what encoding of text they
// are, as far as it matters for what a person is told.
import { createReadStream } from 'node:fs'
import { pipeline, type Readable } from 'node:stream'
import { createGunzip, createZstdDecompress } from 'node:zlib'
import { compressionOf } from '../../tables/table.ts'
import { Failure } from '../terminal/failure.ts'

const BLOCK_BYTES = 256 * 1024
/** The default of `limits.file_bytes_max`. A small file may expand to any size. */
const EXPANDED_BYTES_MAX = 10 * 1024 ** 3

/** To be read to its end, or returned. Throws a Failure where the file cannot be decompressed, or expands too far. */
export async function* inputBytes(path: string, bytesMax = EXPANDED_BYTES_MAX): AsyncGenerator<Buffer> {
  const source = createReadStream(path, { highWaterMark: BLOCK_BYTES })
  const compression = compressionOf(path)
  if (compression === null) return yield* readable(source)
  const options = { chunkSize: BLOCK_BYTES }
  const decoder = compression === 'gz' ? createGunzip(options) : createZstdDecompress(options)
  let bytes = 0
  try {
    // The error is that of the decoder, which is read.
    for await (const block of readable(pipeline(source, decoder, () => {}))) {
      bytes += block.length
      if (bytes > bytesMax)
        throw new Failure(
          `${path} expands to more than ${bytesMax / 1024 ** 3} GiB; split it, or decompress it first if that is right`,
        )
      yield block
    }
  } catch (error) {
    const code = error instanceof Error && 'code' in error ? String(error.code) : ''
    if (!(error instanceof Error) || !/^(Z_|ZSTD_)/.test(code)) throw error
    throw new Failure(
      `${path} cannot be decompressed (${error.message}); is it complete, and as its name says?`,
    )
  } finally {
    source.destroy()
    decoder.destroy()
  }
}

async function* readable(stream: Readable): AsyncGenerator<Buffer> {
  const blocks: AsyncIterable<Buffer> = stream
  yield* blocks
}

/** The beginning of the file. */
export async function inputHead(path: string, bytes: number): Promise<Buffer> {
  const blocks: Buffer[] = []
  let length = 0
  for await (const block of inputBytes(path)) {
    blocks.push(block)
    length += block.length
    if (length >= bytes) break
  }
  return Buffer.concat(blocks).subarray(0, bytes)
}

type Utf16 = 'utf-16le' | 'utf-16be'

/** By its byte-order mark. */
export function markedUtf16(head: Buffer): Utf16 | undefined {
  const mark = head.length < 2 ? 0 : head.readUInt16BE(0)
  return mark === 0xfffe ? 'utf-16le' : mark === 0xfeff ? 'utf-16be' : undefined
}

/** Throws a Failure where the text is UTF-16: in most files, every other byte of it is zero, and no byte of UTF-8. */
export function refuseUtf16(path: string, head: Buffer): void {
  const zeros = [0, 0]
  for (let at = 0; at < head.length; at++) if (head[at] === 0) zeros[at % 2]!++
  const [even = 0, odd = 0] = zeros
  const isLittle = odd > head.length / ZEROS_PER && even < odd / ZEROS_PER
  const isBig = even > head.length / ZEROS_PER && odd < even / ZEROS_PER
  const encoding = markedUtf16(head) ?? (isLittle ? 'utf-16le' : isBig ? 'utf-16be' : undefined)
  if (encoding === undefined) return
  throw new Failure(
    `${path} is UTF-16; save it as UTF-8, for example with: iconv -f ${encoding.toUpperCase()} -t UTF-8 ${path}`,
  )
}

/** Delimiters and line breaks have a zero in every script; other characters may have none. */
const ZEROS_PER = 20
