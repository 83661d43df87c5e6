// Reads the parts of a multipart form, one after the other in constant memory. The body may be compressed as a whole;
// its decompressed size is bounded too.
import type { IncomingMessage } from 'node:http'
import { pipeline, type Readable, Transform } from 'node:stream'
import { constants, createGunzip, createZstdDecompress } from 'node:zlib'
import type { FastifyRequest } from 'fastify'
import { ApiError } from '../../domain/errors.ts'
import type { Announced } from '../../intake/incoming.ts'
import type { FormPart } from '../../intake/upload.ts'

/** The most bytes of a form beside its file: fields, boundaries, headers. */
const FORM_BYTES_MAX = 1024 * 1024
/** The largest zstd window, 8 MiB, that a recipient has to support (RFC 9659). */
const ZSTD_WINDOW_LOG_MAX = 23

/** Throws payload_too_large by the announced length of a form. `file_bytes_max`: the limit of its file. */
export function checkFormLength(request: FastifyRequest, file_bytes_max: number, param: string): void {
  if (Number(request.headers['content-length'] ?? 0) > file_bytes_max + FORM_BYTES_MAX)
    throw tooLarge(file_bytes_max, param)
}

/** The size and compression of a form by its headers. */
export function announcedForm({ headers }: Pick<FastifyRequest, 'headers'>): Announced {
  const encoding = encodingOf(headers)
  // The size of a compressed body is not known before it is read.
  const bytes = encoding === null ? Number(headers['content-length'] ?? 0) : 0
  return { bytes, zstd: encoding === 'zstd' }
}

/** Reads the parts of a form. Throws invalid_multipart for a malformed or incomplete form. */
export async function* formOf(
  request: FastifyRequest,
  file_bytes_max: number,
  param: string,
): AsyncGenerator<FormPart> {
  // The call may have been rejected while its key was read.
  if (request.raw.errored) throw request.raw.errored
  // The file's receiver limits its size; the parser does not.
  const limits = { fileSize: Number.MAX_SAFE_INTEGER, fieldSize: 64 * 1024, fields: 50, files: 2, parts: 60 }
  try {
    for await (const part of decoded(request, file_bytes_max, param).parts({ limits })) {
      yield part.type === 'file' ? { ...part, file: pieces(part.file) } : part
    }
  } catch (error) {
    throw broken(error)
  }
}

async function* pieces(file: AsyncIterable<unknown>): AsyncGenerator<Buffer> {
  try {
    for await (const piece of file) if (Buffer.isBuffer(piece)) yield piece
  } catch (error) {
    throw broken(error)
  }
}

function broken(error: unknown): ApiError {
  if (error instanceof ApiError) return error
  const reason = error instanceof Error ? `: ${error.message}` : ''
  return new ApiError('invalid_multipart', `The multipart form is malformed or incomplete${reason}.`)
}

/** The request with a decompressed body: the parser of forms reads only `raw`. */
function decoded(request: FastifyRequest, file_bytes_max: number, param: string): FastifyRequest {
  const encoding = encodingOf(request.headers)
  if (encoding === null) return request
  const decoder =
    encoding === 'gzip'
      ? createGunzip()
      : createZstdDecompress({ params: { [constants.ZSTD_d_windowLogMax]: ZSTD_WINDOW_LOG_MAX } })
  const bound = bounded(file_bytes_max, param)
  // The reader of `bound` gets the error.
  const body: Readable = pipeline(request.raw, decoder, bound, () => {})
  const raw = Object.assign(body, { headers: request.headers }) satisfies Pick<IncomingMessage, 'headers'>
  return Object.create(request, { raw: { value: raw } })
}

function bounded(file_bytes_max: number, param: string): Transform {
  let bytes = 0
  return new Transform({
    transform(block: Buffer, _encoding, done) {
      bytes += block.length
      done(bytes > file_bytes_max + FORM_BYTES_MAX ? tooLarge(file_bytes_max, param) : null, block)
    },
  })
}

function tooLarge(file_bytes_max: number, param: string): ApiError {
  return new ApiError('payload_too_large', `The ${param} is larger than ${file_bytes_max} bytes.`, { param })
}

/** The compression of a body; other encodings were rejected before the body was read. */
function encodingOf(headers: FastifyRequest['headers']): 'gzip' | 'zstd' | null {
  const encoding = headers['content-encoding']?.trim().toLowerCase()
  return encoding === 'gzip' || encoding === 'zstd' ? encoding : null
}
