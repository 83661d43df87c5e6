// Compresses a long answer for a caller that accepts it (RFC 9110 §12.5.3). The fastest levels are used: a download is
// not to wait for its compression.
import { type Duplex, pipeline, type Readable } from 'node:stream'
import { constants, createGzip, createZstdCompress } from 'node:zlib'

export type Encoding = 'zstd' | 'gzip'

const PREFERRED: readonly Encoding[] = ['zstd', 'gzip']

/** Null: as it is. */
export function encodingFor(accept: string | undefined): Encoding | null {
  const weights = new Map<string, number>()
  for (const item of (accept ?? '').split(',')) {
    const [name = '', ...parameters] = item.split(';').map((part) => part.trim().toLowerCase())
    const q = parameters.find((parameter) => parameter.startsWith('q='))
    if (name !== '') weights.set(name, q === undefined ? 1 : Number(q.slice(2)))
  }
  return PREFERRED.find((encoding) => (weights.get(encoding) ?? 0) > 0) ?? null
}

export function encode(content: Readable, encoding: Encoding): Readable {
  const encoder: Duplex =
    encoding === 'gzip'
      ? createGzip({ level: 1 })
      : createZstdCompress({ params: { [constants.ZSTD_c_compressionLevel]: 1 } })
  // An error of the content destroys the encoder, and with it the answer.
  return pipeline(content, encoder, () => {})
}
