// Describes a file as the API shows it.
import { type Static, Type } from 'typebox'
import { FILE_PURPOSES, FILE_STATUSES, UPLOAD_STATUSES } from '../domain/file.ts'
import { arrayOf, count, deletedOf, maybe, object, oneOf, orNull, text, timestamp } from './shape.ts'

export const FileProblem = Type.Object({
  line: count('Its number in the file, from 1; 0: the file as a whole.'),
  code: Type.String(),
  message: Type.String(),
  param: Type.Optional(Type.String()),
})

export type FileProblem = Static<typeof FileProblem>

export const FileObject = object(
  'File',
  {
    id: text('Begins with `file_`.'),
    object: Type.Literal('file'),
    purpose: oneOf(
      FILE_PURPOSES,
      '`batch`: lines that were uploaded. `batch_output`: results, successes and failures alike. `table`: rows that were uploaded, for `table` of a new batch.',
    ),
    filename: Type.String(),
    bytes: count(),
    line_count: count('0 until the file has been validated, and of a table.'),
    status: oneOf([...FILE_STATUSES, 'uploaded'], '`uploaded` is `pending` for OpenAI clients.'),
    waiting_reason: Type.Optional(
      Type.Object(
        {
          code: Type.Enum(['no_worker', 'fetching', 'validating', 'retrying', 'queued']),
          message: Type.String(),
        },
        {
          title: 'FileWaitingReason',
          description: 'Only while the file is `pending`, and not in lists: what its validation waits for.',
        },
      ),
    ),
    status_details: maybe(
      Type.String(),
      'Only where validation failed: the first bad line and what is wrong with it.',
    ),
    errors: Type.Optional(arrayOf(FileProblem, 'Only where validation failed: the first hundred bad lines.')),
    source: Type.Optional(
      Type.Object(
        {
          url: Type.String(),
          etag: orNull(Type.String(), 'Of the content that is read; null until it is known.'),
        },
        { title: 'FileSource', description: 'Of an input that a batch took from a bucket.' },
      ),
    ),
    region: Type.String(),
    created: timestamp('when it was uploaded or first written.'),
    created_at: timestamp('the same as `created`, for OpenAI clients.'),
    expires_at: timestamp('when it will be deleted, or once the unfinished batches that read it have ended.'),
  },
  {
    id: 'file_01k0a6v1h8e5q6t2m3x4z9b7cd',
    object: 'file',
    purpose: 'batch',
    filename: 'reviews.jsonl',
    bytes: 4280,
    line_count: 12,
    status: 'processed',
    region: 'local',
    created: 1767225600,
    created_at: 1767225600,
    expires_at: 1775001600,
  },
)

export type FileObject = Static<typeof FileObject>

export const DeletedFile = deletedOf('file', 'DeletedFile')

// Uploads in parts as the API shows them, and the requests that make one.

export const UploadStatusShape = oneOf(UPLOAD_STATUSES)

export const UploadObject = object(
  'Upload',
  {
    id: text('Begins with `upload_`.'),
    object: Type.Literal('upload'),
    status: UploadStatusShape,
    filename: Type.String(),
    purpose: Type.Literal('batch'),
    mime_type: Type.String(),
    bytes: Type.Integer({ minimum: 1, description: 'The size of the whole, as announced.' }),
    part_bytes: count('The size of all its parts.'),
    created_at: timestamp('when it was created.'),
    expires_at: timestamp('when it and its parts are deleted unless it is completed.'),
    file: maybe(FileObject, 'Of a completed upload: its file, while there is one.'),
  },
  {
    id: 'upload_01k0a6v1h8e5q6t2m3x4z9b7cd',
    object: 'upload',
    status: 'pending',
    filename: 'reviews.jsonl',
    purpose: 'batch',
    mime_type: 'application/jsonl',
    bytes: 2147483648,
    part_bytes: 67108864,
    created_at: 1767225600,
    expires_at: 1767312000,
  },
)

export type UploadObject = Static<typeof UploadObject>

export const ExpiresAfter = Type.Object(
  { anchor: Type.Literal('created_at'), seconds: Type.Integer({ minimum: 1, maximum: 10 ** 10 }) },
  { additionalProperties: false },
)

export const CreateUpload = object(
  'CreateUpload',
  {
    filename: Type.String({ maxLength: 1024 }),
    purpose: Type.Literal('batch'),
    bytes: Type.Integer({ minimum: 1, description: 'The size of the whole.' }),
    mime_type: Type.String({ maxLength: 255, description: 'Of JSONL, whatever name it goes by.' }),
    expires_after: maybe(ExpiresAfter, 'Deletes the file so long after its creation, if that is sooner.'),
  },
  { filename: 'reviews.jsonl', purpose: 'batch', bytes: 2147483648, mime_type: 'application/jsonl' },
)

export const CompleteUpload = object(
  'CompleteUpload',
  {
    part_ids: Type.Array(Type.String(), {
      minItems: 1,
      uniqueItems: true,
      description: 'The parts in the order of the content.',
    }),
    md5: maybe(
      Type.String({ pattern: '^[0-9a-fA-F]{32}$' }),
      'Of the whole content, hexadecimal; another content is refused.',
    ),
  },
  { part_ids: ['part_01k0a6v1h8e5q6t2m3x4z9b7cd'] },
)

export const UploadPartObject = object(
  'UploadPart',
  {
    id: text('Begins with `part_`.'),
    object: Type.Literal('upload.part'),
    upload_id: Type.String(),
    bytes: count(),
    sha256: text('Of its content, hexadecimal: tells which bytes have arrived.'),
    created_at: timestamp('when it was stored.'),
  },
  {
    id: 'part_01k0a6v1h8e5q6t2m3x4z9b7cd',
    object: 'upload.part',
    upload_id: 'upload_01k0a6v1h8e5q6t2m3x4z9b7cd',
    bytes: 67108864,
    sha256: '9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08',
    created_at: 1767225601,
  },
)

export type UploadPartObject = Static<typeof UploadPartObject>
