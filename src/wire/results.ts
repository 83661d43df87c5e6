// The query that reads the results of a batch while it runs.
import { Type } from 'typebox'
import { LINE_NUMBER_MAX } from '../domain/ids.ts'

const RESULTS_LIMIT_MAX = 10_000

export const ResultsQuery = Type.Object({
  after: Type.Optional(
    Type.Integer({
      minimum: 0,
      maximum: LINE_NUMBER_MAX,
      default: 0,
      description: 'Only lines behind this line of the input file. Pass `X-Next-After` here to go on.',
    }),
  ),
  limit: Type.Optional(
    Type.Integer({
      minimum: 1,
      maximum: RESULTS_LIMIT_MAX,
      default: 1000,
      description: 'How many lines at most.',
    }),
  ),
  format: Type.Optional(
    Type.Unsafe<'jsonl' | 'csv' | 'parquet'>({
      type: 'string',
      enum: ['jsonl', 'csv', 'parquet'],
      default: 'jsonl',
      description:
        '`csv` and `parquet`: all finished lines as one table, with a column for each property of the JSON schema ' +
        'that the first request asks answers to follow; without one, a column `answer`. Takes no `after`, `limit`, ' +
        '`part` or `contiguous`.',
    }),
  ),
  spreadsheet: Type.Optional(
    Type.Unsafe<'true' | 'false'>({
      type: 'string',
      enum: ['true', 'false'],
      default: 'false',
      description:
        'With `true`, CSV is for spreadsheets: it has a byte-order mark and CRLF, and an apostrophe keeps each text ' +
        'that would run as a formula from running.',
    }),
  ),
  part: Type.Optional(
    Type.Unsafe<'output' | 'error' | 'all'>({
      type: 'string',
      enum: ['output', 'error', 'all'],
      default: 'all',
      description: 'Answers, failed lines, or both.',
    }),
  ),
  contiguous: Type.Optional(
    Type.Unsafe<'true' | 'false'>({
      type: 'string',
      enum: ['true', 'false'],
      default: 'false',
      description:
        'With `true` a page ends before the first line that is not finished, so that each line is read once. ' +
        'Else all that is finished is read, and what lies behind an unfinished line comes again.',
    }),
  ),
})
