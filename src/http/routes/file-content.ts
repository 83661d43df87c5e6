// GET and HEAD /v1/files/{file_id}/content
import { Readable } from 'node:stream'
import type { FastifyReply } from 'fastify'
import { Type } from 'typebox'
import type { ByteRange } from '../../blobs/blobs.ts'
import { ApiError } from '../../domain/errors.ts'
import { readContent } from '../../results/download.ts'
import { readFile } from '../../store/files.ts'
import { maybeText } from '../../wire/shape.ts'
import { quotaHolder } from '../access/caller.ts'
import { type Encoding, encode, encodingFor } from '../response/compress.ts'
import type { ProjectSlots } from '../response/heavy-reads.ts'
import { attachment } from '../response/send-error.ts'
import { type App, found, type RouteDependencies, route } from '../route.ts'
import { fileIdOf } from './files.ts'

/** Not `application/jsonl`: clients that look for "application/json" at its beginning would parse it. */
const JSONL = 'application/x-ndjson'

/** Less is not worth it. */
const ENCODED_BYTES_MIN = 1024

type Deps = Pick<RouteDependencies, 'store' | 'sealed' | 'clock' | 'plans'> & { downloads: ProjectSlots }

export function fileContentRoute(app: App, { store, sealed, clock, plans, downloads }: Deps): void {
  route(app, 'GET|HEAD /v1/files/:file_id/content', {
    access: ['files:read'],
    operation: 'getFileContent',
    summary: 'Download a file',
    description:
      'The content as JSONL. `Range` selects one range of bytes, so that an interrupted download can be resumed.',
    answer: Type.String(),
    content_type: JSONL,
    partial: true,
    headers: Type.Object({
      Range: Type.Optional(Type.String({ examples: ['bytes=0-1023'] })),
      'Accept-Encoding': Type.Optional(
        Type.String({ description: '`zstd` or `gzip` compress the answer.', examples: ['zstd, gzip'] }),
      ),
      'If-None-Match': maybeText('The `ETag` of a copy that the caller has: 304 if the content is the same.'),
    }),
    errors: ['file_not_found', 'range_not_satisfiable', 'quota_exceeded'],
    async handler(request, { project_id }, reply) {
      const id = fileIdOf(request.params.file_id)
      const file = found(await readFile(store.read, project_id, id, clock.now()), 'file_not_found')
      const { 'if-range': condition, range: wanted } = request.headers
      // A range is one of the bytes as they are.
      const isSmall = file.bytes < ENCODED_BYTES_MIN
      const encoding = wanted !== undefined || isSmall ? null : encodingFor(request)
      const etag = etagOf(file.id)
      const encodedEtag = etagOf(file.id, encoding)
      reply.header('vary', 'accept-encoding')
      if (isNamed(encodedEtag, request.headers['if-none-match']))
        return reply.code(304).header('etag', encodedEtag).send()
      reply.headers({
        'accept-ranges': 'bytes',
        'content-disposition': attachment(file.filename),
        etag: encodedEtag,
      })
      const asked = condition === undefined || condition === etag ? parseRange(wanted, file.bytes) : null
      if (asked === 'unsatisfiable') return notSatisfiable(reply, file.bytes)
      const range = asked ?? { start: 0, end: file.bytes }
      if (asked)
        reply.code(206).header('content-range', `bytes ${range.start}-${range.end - 1}/${file.bytes}`)
      reply.type(JSONL)
      if (encoding === null) reply.header('content-length', range.end - range.start)
      else reply.header('content-encoding', encoding)
      if (request.method === 'HEAD') return reply.send()
      downloads.take(quotaHolder(request, plans), reply.raw)
      const content = Readable.from(readContent({ db: store.read, sealed }, file, range), {
        objectMode: false,
      })
      content.on('error', (error) =>
        request.log.error({ err: error, file_id: file.id }, 'a download broke off'),
      )
      return reply.send(encoding === null ? content : encode(content, encoding))
    },
  })
}

/** Compressed bytes are others than those that they stand for, so they have a tag of their own. */
function etagOf(file_id: string, encoding: Encoding | null = null): string {
  return encoding === null ? `"${file_id}"` : `"${file_id}-${encoding}"`
}

/** Whether `If-None-Match` names this content (RFC 9110 §13.1.2). */
function isNamed(etag: string, header: string | undefined): boolean {
  const tags = (header ?? '').split(',').map((tag) => tag.trim().replace(/^W\//, ''))
  return tags.includes('*') || tags.includes(etag)
}

function notSatisfiable(reply: FastifyReply, bytes: number): FastifyReply {
  const apiError = new ApiError('range_not_satisfiable', `The file has ${bytes} bytes.`, { param: 'Range' })
  reply.removeHeader('content-disposition')
  return reply
    .code(apiError.status)
    .header('content-range', `bytes */${bytes}`)
    .type('application/json; charset=utf-8')
    .send({ error: apiError.toWire() })
}

// The Range header (RFC 9110 §14): one range of bytes. Several ranges and other units are ignored, as the RFC
// allows; the whole content is then sent.
function parseRange(header: string | undefined, bytes: number): ByteRange | 'unsatisfiable' | null {
  const [, first = '', last = ''] = /^bytes=(\d*)-(\d*)$/.exec(header?.replaceAll(' ', '') ?? '') ?? []
  if (first === '' && last === '') return null
  if (first === '') {
    const suffix = Math.min(Number(last), bytes)
    return suffix === 0 ? 'unsatisfiable' : { start: bytes - suffix, end: bytes }
  }
  const start = Number(first)
  const end = last === '' ? bytes : Math.min(Number(last) + 1, bytes)
  if (last !== '' && Number(last) < start) return null
  return start >= bytes ? 'unsatisfiable' : { start, end }
}
