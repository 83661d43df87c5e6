// Compresses large answers in JSON, JSONL and CSV for callers that accept it. The content of files sees to itself: it has
// ranges and tags.
import { Readable } from 'node:stream'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { encode, encodingFor } from './encode.ts'

/** Of a whole answer; streams, whose size nobody knows, are compressed whatever they turn out to be. */
const ENCODED_CHARACTERS_MIN = 16 * 1024
const ENCODED_TYPES = /^(application\/(json|x-ndjson)|text\/csv)\b/

/** What to send instead of `payload`, which may be itself. */
export function compressAnswer(request: FastifyRequest, reply: FastifyReply, payload: unknown): unknown {
  const content = contentOf(payload)
  if (content === null) return payload
  if (!ENCODED_TYPES.test(String(reply.getHeader('content-type') ?? ''))) return payload
  if (['content-encoding', 'content-length', 'accept-ranges'].some((name) => reply.hasHeader(name)))
    return payload
  reply.header('vary', 'accept-encoding')
  const encoding = encodingFor(request.headers['accept-encoding'])
  if (encoding === null || request.method === 'HEAD') return payload
  reply.header('content-encoding', encoding)
  return encode(content(), encoding)
}

function contentOf(payload: unknown): (() => Readable) | null {
  if (payload instanceof Readable) return () => payload
  if (typeof payload !== 'string' || payload.length < ENCODED_CHARACTERS_MIN) return null
  return () => Readable.from([Buffer.from(payload)])
}
