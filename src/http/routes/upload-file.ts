// POST /v1/files
import type { FastifyRequest } from 'fastify'
import { Type } from 'typebox'
import { Refusal } from '../../domain/errors.ts'
import { type FormPart, receiveUpload } from '../../intake/upload.ts'
import { FileObject } from '../../wire/file.ts'
import { callerOf } from '../caller-of.ts'
import { planOf } from '../plan-of.ts'
import { route } from '../route.ts'
import type { ServerDeps } from '../server.ts'
import { showFile } from '../show-file.ts'
import type { App } from '../type-provider.ts'

/** The form around the file: fields, boundaries, headers. */
const FORM_BYTES_MAX = 1024 * 1024

const UploadForm = Type.Object(
  {
    purpose: Type.Literal('batch'),
    file: Type.String({
      contentMediaType: 'application/x-ndjson',
      description: 'The JSONL, sent as a file.',
    }),
  },
  { title: 'UploadFile' },
)

type Deps = Pick<
  ServerDeps,
  'store' | 'sealed' | 'clock' | 'region' | 'plans' | 'file_bytes_max' | 'early' | 'wake'
>

export function uploadFileRoute(app: App, deps: Deps): void {
  const { clock, region, plans, file_bytes_max, wake } = deps
  route(app, {
    method: 'POST',
    url: '/v1/files',
    access: ['files:write'],
    doc: {
      operation: 'uploadFile',
      summary: 'Upload an input file',
      description:
        'A form (`multipart/form-data`) with the fields `purpose` (`batch`) and `file` (the JSONL), in any order. The file is `pending` until it has been validated.',
      answer: FileObject,
      form: UploadForm,
      errors: ['invalid_multipart'],
    },
    accepts: {},
    async handler(request) {
      const caller = callerOf(request)
      if (!request.isMultipart())
        throw new Refusal('unsupported_media_type', 'Send the file as `multipart/form-data`.')
      const form_bytes = Number(request.headers['content-length'] ?? 0)
      if (form_bytes > file_bytes_max + FORM_BYTES_MAX)
        throw new Refusal('payload_too_large', `The file is larger than ${file_bytes_max} bytes.`, {
          param: 'file',
        })
      const file = await receiveUpload(deps, formOf(request), {
        project_id: caller.project_id,
        now: clock.now(),
        retention_ms: planOf(plans, caller).file_retention_ms,
        file_bytes_max,
        form_bytes,
      })
      wake()
      return showFile(file, region)
    },
  })
}

/** The parts of the form; whatever is wrong with the form as such is the sender's to mend. */
async function* formOf(request: FastifyRequest): AsyncGenerator<FormPart> {
  // The size of the file is bounded where it is received; here it may be anything.
  const limits = { fileSize: Number.MAX_SAFE_INTEGER, fieldSize: 64 * 1024, fields: 50, files: 2, parts: 60 }
  try {
    for await (const part of request.parts({ limits })) {
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

function broken(error: unknown): Refusal {
  const reason = error instanceof Error ? `: ${error.message}` : ''
  return new Refusal('invalid_multipart', `The multipart form is broken or incomplete${reason}.`)
}
