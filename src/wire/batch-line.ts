// Describes the lines of a batch as the API lists them, and one line in full.
import { type Static, Type } from 'typebox'
import { LINE_NUMBER_MAX } from '../domain/ids.ts'
import { LineRecord } from './request-record.ts'
import {
  amount,
  anything,
  arrayOf,
  between,
  count,
  flag,
  listOf,
  maybeText,
  object,
  oneOf,
  orNull,
  text,
  timestamp,
} from './shape.ts'

const LINES_LIMIT_MAX = 500

export const LINE_STATUSES = ['completed', 'failed', 'pending'] as const
export type LineStatus = (typeof LINE_STATUSES)[number]

const TextOrNull = orNull(Type.String())
const Count = count()

const SUMMARY = {
  id: text('The request ID of the line.'),
  object: Type.Literal('batch_line'),
  line: Type.Integer({ minimum: 1, description: 'Its number in the input file.' }),
  custom_id: Type.String(),
  status: oneOf(LINE_STATUSES),
  model: TextOrNull,
  entity: TextOrNull,
  conversation: TextOrNull,
  error: orNull(Type.Object({ code: Type.String(), message: Type.String() })),
  attempts: count('How often it was sent.'),
  duration_ms: orNull(amount(), 'How long its last attempt took; null when it was not sent.'),
  usage: orNull(Type.Object({ prompt_tokens: Count, completion_tokens: Count, total_tokens: Count })),
  cost_usd: amount(),
  finished_at: orNull(count(), 'Unix seconds; null while it is pending.'),
}

export const LineSummary = object('LineSummary', SUMMARY)
export type LineSummary = Static<typeof LineSummary>

export const LineList = listOf(LineSummary, 'LineList')

export const FoundLine = Type.Object({ ...SUMMARY, batch_id: Type.String() }, { title: 'FoundLine' })
export type FoundLine = Static<typeof FoundLine>

export const FoundLineList = listOf(FoundLine)

export const FindLinesQuery = Type.Object({
  custom_id: Type.Optional(
    Type.String({ minLength: 1, description: 'Only lines with this `custom_id`; an index finds them.' }),
  ),
  search: Type.Optional(
    Type.String({ minLength: 1, description: 'Only lines whose `custom_id` contains this text.' }),
  ),
  kind: Type.Optional(oneOf(['requests'], 'Only requests that came one at a time (`POST /v1/requests`).')),
  status: Type.Optional(oneOf(LINE_STATUSES, '`pending`: not finished yet. Without it, all lines.')),
  entity: maybeText('Only lines of this entity.'),
  conversation: maybeText('Only lines of this conversation, as their metadata names it.'),
  limit: Type.Optional(
    Type.Integer({ minimum: 1, maximum: 100, default: 20, description: 'How many lines at most.' }),
  ),
  starting_after: Type.Optional(
    text('The request ID of a line, or `next_cursor`: the list goes on behind it.'),
  ),
})

export type FindLinesQuery = Static<typeof FindLinesQuery>

export const LINE_FILTER = {
  message: maybeText('Only lines that failed with a message of this `pattern`, as the error groups give it.'),
  model: maybeText('Only lines of this model.'),
  entity: maybeText('Only lines of this entity.'),
  conversation: maybeText('Only lines of this conversation, as their metadata names it.'),
  custom_id: maybeText('Only the line with this `custom_id`; an index finds it.'),
  search: maybeText('Only lines whose `custom_id` contains this text.'),
}

/** The query of a list of lines, in the order of the input; a page may be short before the list ends. */
export const LinesQuery = Type.Object({
  limit: Type.Optional(between(1, LINES_LIMIT_MAX, 'How many lines at most.', 100)),
  after: Type.Optional(
    between(
      0,
      LINE_NUMBER_MAX,
      'Only lines behind this line of the input file: any number, or `next_cursor`.',
      0,
    ),
  ),
  status: Type.Optional(oneOf(LINE_STATUSES, '`pending`: not finished yet. Without it, all lines.')),
  code: maybeText('Only lines that failed with this error code.'),
  ...LINE_FILTER,
})

export type LinesQuery = Static<typeof LinesQuery>

export const BatchLine = object('BatchLine', {
  ...SUMMARY,
  input: anything('The line of the input file, byte for byte; null once the file has been deleted.'),
  result: anything(
    'The result line, byte for byte; null while it is pending and once the file has been deleted.',
  ),
  record: orNull(LineRecord, 'The audit record, without the response; null while it is pending.'),
})

export type BatchLine = Static<typeof BatchLine>

// The query that reads the results of a batch while it runs.

const RESULTS_LIMIT_MAX = 10_000

export const ResultsQuery = Type.Object({
  after: Type.Optional(
    between(
      0,
      LINE_NUMBER_MAX,
      'Only lines behind this line of the input file. Pass `X-Next-After` here to go on.',
      0,
    ),
  ),
  limit: Type.Optional(between(1, RESULTS_LIMIT_MAX, 'How many lines at most.', 1000)),
  lines: Type.Optional(
    Type.String({
      pattern: '^\\d{1,9}(,\\d{1,9}){0,999}$',
      description:
        'Only these lines of the input file, as far as they are finished: up to 1,000 numbers, such as `3,8,9`. Takes no `after`, `part` or `contiguous`.',
    }),
  ),
  format: Type.Optional(
    oneOf(
      ['jsonl', 'csv', 'parquet'],
      '`csv` and `parquet`: all finished lines as one table, with a column for each property of the JSON schema ' +
        'that the first request asks answers to follow; without one, a column `answer`. Takes no `after`, `limit`, ' +
        '`lines`, `part` or `contiguous`.',
      'jsonl',
    ),
  ),
  spreadsheet: Type.Optional(
    oneOf(
      ['true', 'false'],
      'With `true`, CSV is for spreadsheets: it has a byte-order mark and CRLF, and an apostrophe keeps each text ' +
        'that would run as a formula from running.',
      'false',
    ),
  ),
  part: Type.Optional(oneOf(['output', 'error', 'all'], 'Answers, failed lines, or both.', 'all')),
  contiguous: Type.Optional(
    oneOf(
      ['true', 'false'],
      'With `true` a page ends before the first line that is not finished, so that each line is read once. ' +
        'Else all that is finished is read, and what lies behind an unfinished line comes again.',
      'false',
    ),
  ),
})

// The errors of a batch, grouped by code and message.

export const BatchErrors = object('BatchErrors', {
  object: Type.Literal('batch_errors'),
  batch_id: Type.String(),
  failed: count('How many lines failed: the sum of the groups and `other`.'),
  not_run: count('Of these, the lines that were never sent.'),
  groups: arrayOf(
    Type.Object({
      code: Type.String(),
      pattern: orNull(
        Type.String(),
        'What the messages of the group have in common: words with digits are `0`. It is the `message` that filters lines. Null for messages of the code that found no group of their own.',
      ),
      message: text('The message of one of them.'),
      lines: Count,
      retryable: flag('Whether the same lines may succeed when they are sent again.'),
      advice: text('What to do.'),
    }),
    'Those with the most lines first.',
  ),
  other: count('Failed lines that belong to no group.'),
})

export type BatchErrors = Static<typeof BatchErrors>

// The timeline of a batch, as points for a chart.

export const BatchTimeline = object('BatchTimeline', {
  object: Type.Literal('batch_timeline'),
  batch_id: Type.String(),
  interval_s: Type.Number({
    exclusiveMinimum: 0,
    description: 'How much time a point covers; it grows as the batch does.',
  }),
  points: arrayOf(
    Type.Object({
      at: timestamp('when the interval begins.'),
      completed: Count,
      failed: Count,
      not_run: count('Of the failed lines, those that were never sent.'),
      prompt_tokens: Count,
      completion_tokens: Count,
      cost_usd: amount(),
    }),
    'What finished in each interval, in order of time; intervals in which nothing did are left out.',
  ),
  states: arrayOf(
    Type.Object({ status: Type.String(), at: timestamp('when it was entered.') }),
    'The statuses that the batch has had, with their times.',
  ),
})

export type BatchTimeline = Static<typeof BatchTimeline>
