// Reads from the beginning of a GGUF file what determines the memory that its model takes:
// https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
import { open } from 'node:fs/promises'

export interface GgufModel {
  bytes: number
  /** The context length in tokens; null where the file does not have it. */
  context_length: number | null
  /** The bytes of the KV cache per token, at 16 bits a value; null where the file does not have the sizes. */
  cache_bytes_per_token: number | null
}

/** The bytes that are read of a GGUF file, whose long vocabulary comes after the needed values. */
const HEAD_BYTES = 4 * 1024 * 1024
const CACHE_VALUE_BYTES = 2
const TYPE = { string: 8, array: 9 }
/** The bytes and the reader of each type of number, from 0 for uint8 to 12 for float64. */
const NUMBERS: ReadonlyMap<number, [number, (view: DataView, at: number) => number]> = new Map([
  [0, [1, (view, at) => view.getUint8(at)]],
  [1, [1, (view, at) => view.getInt8(at)]],
  [2, [2, (view, at) => view.getUint16(at, true)]],
  [3, [2, (view, at) => view.getInt16(at, true)]],
  [4, [4, (view, at) => view.getUint32(at, true)]],
  [5, [4, (view, at) => view.getInt32(at, true)]],
  [6, [4, (view, at) => view.getFloat32(at, true)]],
  [7, [1, (view, at) => view.getUint8(at)]],
  [10, [8, (view, at) => Number(view.getBigUint64(at, true))]],
  [11, [8, (view, at) => Number(view.getBigInt64(at, true))]],
  [12, [8, (view, at) => view.getFloat64(at, true)]],
])

/** Reads a GGUF file; null when it is none. Rejects when it cannot be read. */
export async function readGguf(path: string): Promise<GgufModel | null> {
  await using file = await open(path)
  const { size } = await file.stat()
  const head = Buffer.alloc(Math.min(size, HEAD_BYTES))
  await file.read(head, 0, head.length, 0)
  if (head.length < 24 || head.toString('latin1', 0, 4) !== 'GGUF') return null
  return { bytes: size, ...sizesOf(metadataOf(head)) }
}

type Metadata = ReadonlyMap<string, string | number | number[]>

/** The values that `head` contains completely; the first incomplete value ends the reading. */
function metadataOf(head: Buffer): Metadata {
  const view = new DataView(head.buffer, head.byteOffset, head.length)
  const found = new Map<string, string | number | number[]>()
  let at = 24
  const long = (): number => {
    at += 8
    return Number(view.getBigUint64(at - 8, true))
  }
  const text = (): string => {
    const length = long()
    at += length
    if (at > head.length) throw new RangeError('beyond the head')
    return head.toString('utf8', at - length, at)
  }
  const number = (type: number): number => {
    const [bytes, read] = NUMBERS.get(type) ?? []
    if (bytes === undefined || read === undefined) throw new RangeError(`unknown type ${type}`)
    at += bytes
    return read(view, at - bytes)
  }
  const word = (): number => number(4)
  const list = (): number[] => {
    const type = word()
    const length = long()
    return Array.from({ length }, () => (type === TYPE.string ? text().length : number(type)))
  }
  try {
    for (let left = Number(view.getBigUint64(16, true)); left > 0; left--) {
      const key = text()
      const type = word()
      found.set(key, type === TYPE.string ? text() : type === TYPE.array ? list() : number(type))
    }
  } catch (error) {
    if (!(error instanceof RangeError)) throw error
  }
  return found
}

function sizesOf(metadata: Metadata): Omit<GgufModel, 'bytes'> {
  const architecture = metadata.get('general.architecture')
  const get = (key: string): number | number[] | null => {
    const value = metadata.get(`${architecture}.${key}`)
    return value === undefined || typeof value === 'string' ? null : value
  }
  const single = (key: string): number | null => {
    const value = get(key)
    return typeof value === 'number' ? value : null
  }
  const layers = single('block_count')
  const heads = single('attention.head_count')
  const width = single('embedding_length')
  const headsKept = get('attention.head_count_kv') ?? heads
  const headWidth = width !== null && heads !== null ? width / heads : null
  const key = single('attention.key_length') ?? headWidth
  const value = single('attention.value_length') ?? headWidth
  const context_length = single('context_length')
  if (layers === null || headsKept === null || key === null || value === null)
    return { context_length, cache_bytes_per_token: null }
  const kept = Array.isArray(headsKept) ? headsKept.reduce((sum, of) => sum + of, 0) : layers * headsKept
  return { context_length, cache_bytes_per_token: kept * (key + value) * CACHE_VALUE_BYTES }
}
