// Reuses zstd contexts. Creating one per frame, which allocates a megabyte, costs as much as compressing a frame that
// compresses well. A context serves one frame at a time; there are as many as frames are compressed at once, and a few
// are kept.
import { constants, createZstdCompress, type ZstdCompress, type ZstdOptions } from 'node:zlib'

/** Each holds about a megabyte. */
const IDLE_MAX = 4

export class ZstdPackers {
  readonly #idle: Packer[] = []
  readonly #options: ZstdOptions

  /** `level` as zstd counts; frames are expected to be `frame_bytes` long, longer ones are no error. */
  constructor(level: number, frame_bytes: number) {
    this.#options = {
      params: { [constants.ZSTD_c_compressionLevel]: level },
      // Whatever is written in one go is one frame, whole and by itself.
      flush: constants.ZSTD_e_end,
      // Room for what does not compress: one pass through the pool, where the default takes one per 16 KiB.
      chunkSize: frame_bytes + Math.ceil(frame_bytes / 128),
    }
  }

  /** `plain`, which is not empty and does not change meanwhile, as one zstd frame; the work is the pool's. */
  async pack(plain: Buffer): Promise<Buffer> {
    const packer = this.#idle.pop() ?? new Packer(this.#options)
    const packed = await packer.pack(plain)
    // One that failed is not used again.
    if (this.#idle.length < IDLE_MAX) this.#idle.push(packer)
    else packer.close()
    return packed
  }
}

class Packer {
  readonly #stream: ZstdCompress
  #pieces: Buffer[] = []

  constructor(options: ZstdOptions) {
    this.#stream = createZstdCompress(options)
    this.#stream.on('data', (piece: Buffer) => this.#pieces.push(piece))
    // The write that failed says so.
    this.#stream.on('error', () => {})
  }

  pack(plain: Buffer): Promise<Buffer> {
    return new Promise((resolve, reject) => {
      this.#stream.write(plain, (error) => {
        if (error) return reject(error)
        const pieces = this.#pieces
        this.#pieces = []
        resolve(pieces.length === 1 ? pieces[0]! : Buffer.concat(pieces))
      })
    })
  }

  close(): void {
    this.#stream.destroy()
  }
}
