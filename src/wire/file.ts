// A file as the API shows it.
import { type Static, Type } from 'typebox'
import { FILE_PURPOSES, FILE_STATUSES, type FilePurpose, type FileStatus } from '../domain/file.ts'
import { timestamp } from './timestamp.ts'

export const FileProblem = Type.Object({
  line: Type.Integer({ minimum: 0, description: 'Its number in the file, from 1; 0: the file as a whole.' }),
  code: Type.String(),
  message: Type.String(),
  param: Type.Optional(Type.String()),
})

export type FileProblem = Static<typeof FileProblem>

export const FileObject = Type.Object(
  {
    id: Type.String({ description: 'Begins with `file_`.' }),
    object: Type.Literal('file'),
    purpose: Type.Unsafe<FilePurpose>({
      type: 'string',
      enum: [...FILE_PURPOSES],
      description: '`batch`: an upload. `batch_output`: results, successes and failures alike.',
    }),
    filename: Type.String(),
    bytes: Type.Integer({ minimum: 0 }),
    line_count: Type.Integer({ minimum: 0, description: '0 until the file has been validated.' }),
    status: Type.Unsafe<FileStatus | 'uploaded'>({
      type: 'string',
      enum: [...FILE_STATUSES, 'uploaded'],
      description: '`uploaded` is `pending` for OpenAI clients.',
    }),
    waiting_reason: Type.Optional(
      Type.Object(
        {
          code: Type.Enum(['no_worker', 'validating', 'retrying', 'queued']),
          message: Type.String(),
        },
        {
          title: 'FileWaitingReason',
          description: 'Only while the file is `pending`, and not in lists: what its validation waits for.',
        },
      ),
    ),
    status_details: Type.Optional(
      Type.Union([Type.String(), Type.Null()], {
        description: 'Only where validation failed: the first bad line and what is wrong with it.',
      }),
    ),
    errors: Type.Optional(
      Type.Array(FileProblem, { description: 'Only where validation failed: the first hundred bad lines.' }),
    ),
    region: Type.String(),
    created: timestamp('when it was uploaded or first written.'),
    created_at: timestamp('the same as `created`, for OpenAI clients.'),
    expires_at: timestamp('when it will be deleted.'),
  },
  {
    title: 'File',
    examples: [
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
    ],
  },
)

export type FileObject = Static<typeof FileObject>

export const DeletedFile = Type.Object(
  {
    id: Type.String(),
    object: Type.Literal('file'),
    deleted: Type.Literal(true),
  },
  {
    title: 'DeletedFile',
    examples: [{ id: 'file_01k0a6v1h8e5q6t2m3x4z9b7cd', object: 'file', deleted: true }],
  },
)
