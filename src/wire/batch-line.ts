// The lines of a batch as a list to browse, and one line with all that is known of it.
import { type Static, Type } from 'typebox'
import { LINE_NUMBER_MAX } from '../domain/ids.ts'
import { listOf } from './list.ts'
import { LineRecord } from './request-record.ts'

const LINES_LIMIT_MAX = 500

export const LINE_STATUSES = ['completed', 'failed', 'pending'] as const
export type LineStatus = (typeof LINE_STATUSES)[number]

const TextOrNull = Type.Union([Type.String(), Type.Null()])
const Tokens = Type.Integer({ minimum: 0 })

const SUMMARY = {
  id: Type.String({ description: 'The request ID of the line.' }),
  object: Type.Literal('batch_line'),
  line: Type.Integer({ minimum: 1, description: 'Its number in the input file.' }),
  custom_id: Type.String(),
  status: Type.Unsafe<LineStatus>({ type: 'string', enum: [...LINE_STATUSES] }),
  model: TextOrNull,
  entity: TextOrNull,
  error: Type.Union([Type.Object({ code: Type.String(), message: Type.String() }), Type.Null()]),
  attempts: Type.Integer({ minimum: 0, description: 'How often it was sent.' }),
  duration_ms: Type.Union([Type.Number({ minimum: 0 }), Type.Null()], {
    description: 'How long its last attempt took; null when it was not sent.',
  }),
  usage: Type.Union([
    Type.Object({ prompt_tokens: Tokens, completion_tokens: Tokens, total_tokens: Tokens }),
    Type.Null(),
  ]),
  cost_usd: Type.Number({ minimum: 0 }),
  finished_at: Type.Union([Type.Integer({ minimum: 0 }), Type.Null()], {
    description: 'Unix seconds; null while it is pending.',
  }),
}

export const LineSummary = Type.Object(SUMMARY, { title: 'LineSummary' })
export type LineSummary = Static<typeof LineSummary>

export const LineList = listOf(LineSummary, 'LineList')

/** Unlike other lists, in the order of the input; a page may be short, and the list still goes on. */
export const LinesQuery = Type.Object({
  limit: Type.Optional(
    Type.Integer({
      minimum: 1,
      maximum: LINES_LIMIT_MAX,
      default: 100,
      description: 'How many lines at most.',
    }),
  ),
  after: Type.Optional(
    Type.Integer({
      minimum: 0,
      maximum: LINE_NUMBER_MAX,
      default: 0,
      description: 'Only lines behind this line of the input file: any number, or `next_cursor`.',
    }),
  ),
  status: Type.Optional(
    Type.Unsafe<LineStatus>({
      type: 'string',
      enum: [...LINE_STATUSES],
      description: '`pending`: not finished yet. Without it, all lines.',
    }),
  ),
  code: Type.Optional(Type.String({ description: 'Only lines that failed with this error code.' })),
  message: Type.Optional(
    Type.String({
      description: 'Only lines that failed with a message of this `pattern`, as the error groups give it.',
    }),
  ),
  model: Type.Optional(Type.String({ description: 'Only lines of this model.' })),
  entity: Type.Optional(Type.String({ description: 'Only lines of this entity.' })),
  custom_id: Type.Optional(Type.String({ description: 'Only lines whose `custom_id` contains this text.' })),
})

export type LinesQuery = Static<typeof LinesQuery>

export const BatchLine = Type.Object(
  {
    ...SUMMARY,
    input: Type.Unknown({
      description: 'The line of the input file, byte for byte; null once the file has been deleted.',
    }),
    result: Type.Unknown({
      description:
        'The result line, byte for byte; null while it is pending and once the file has been deleted.',
    }),
    record: Type.Union([LineRecord, Type.Null()], {
      description: 'The audit record, without the response; null while it is pending.',
    }),
  },
  { title: 'BatchLine' },
)

export type BatchLine = Static<typeof BatchLine>
