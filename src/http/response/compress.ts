// Compresses large answers in JSON, JSONL and CSV for callers that accept it (RFC 9110 §12.5.3). The endpoint of a
// file's content calls `encode` itself: it has ranges and tags. The fastest levels are used, because a download must
// not wait for its compression.
import { type Duplex, pipeline, Readable } from 'node:stream'
import { constants, createGzip, createZstdCompress } from 'node:zlib'
import type { FastifyReply, FastifyRequest } from 'fastify'

/** Of a whole answer; streams, whose size is not known, are always compressed. */
const ENCODED_CHARACTERS_MIN = 16 * 1024
const ENCODED_TYPES = /^(application\/(json|x-ndjson)|text\/csv)\b/

/** The payload to send: compressed, or `payload` itself. */
export function compressAnswer(request: FastifyRequest, reply: FastifyReply, payload: unknown): unknown {
  const content = contentOf(payload)
  if (content === null) return payload
  if (!ENCODED_TYPES.test(String(reply.getHeader('content-type') ?? ''))) return payload
  if (['content-encoding', 'content-length', 'accept-ranges'].some((name) => reply.hasHeader(name)))
    return payload
  reply.header('vary', 'accept-encoding')
  const encoding = encodingFor(request)
  if (encoding === null || request.method === 'HEAD') return payload
  reply.header('content-encoding', encoding)
  return encode(content(), encoding)
}

function contentOf(payload: unknown): (() => Readable) | null {
  if (payload instanceof Readable) return () => payload
  if (typeof payload !== 'string' || payload.length < ENCODED_CHARACTERS_MIN) return null
  return () => Readable.from([Buffer.from(payload)])
}

export type Encoding = 'zstd' | 'gzip'

const PREFERRED: readonly Encoding[] = ['zstd', 'gzip']

/**
 * Of calls by programs that forward the answer: LiteLLM's proxy, which asks for the raw response of OpenAI's SDK, passes
 * on the header `Content-Encoding` with content that it has decompressed.
 */
function isForwarded(headers: FastifyRequest['headers']): boolean {
  return headers['x-stainless-raw-response'] === 'stream' || /\blitellm\//i.test(headers['user-agent'] ?? '')
}

/** Null: as it is, which strict clients always get. */
export function encodingFor({
  headers,
  compat,
}: Pick<FastifyRequest, 'headers' | 'compat'>): Encoding | null {
  if (compat === 'openai' || isForwarded(headers)) return null
  const weights = new Map<string, number>()
  for (const item of (headers['accept-encoding'] ?? '').split(',')) {
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
