// Describes an audit record as the API shows it: of an HTTP call, or of one line of a batch.
import { type Static, Type } from 'typebox'
import { WAITING_CODES } from '../domain/progress.ts'
import { BatchWebhook } from './event.ts'
import {
  amount,
  anything,
  arrayOf,
  count,
  maybe,
  maybeText,
  object,
  oneOf,
  orNull,
  text,
  timestamp,
} from './shape.ts'

const TextOrNull = orNull(Type.String())

export const HttpRequestRecord = object('HttpRequestRecord', {
  id: text('Begins with `req_`.'),
  object: Type.Literal('request'),
  kind: Type.Literal('http'),
  method: Type.String(),
  path: Type.String(),
  status_code: Type.Integer(),
  api_key_id: orNull(
    Type.String(),
    'The key; with an `address`, the one that the call named, if any, be it valid or not.',
  ),
  person: maybeText('Who called, where a proxy had signed them in.'),
  subject: maybeText('The subject of the token that came with the call.'),
  issuer: maybeText('The issuer of that token.'),
  address: maybeText('Where a call came from that no key vouched for; for operators.'),
  entity: TextOrNull,
  created: timestamp('when it was answered.'),
  duration_ms: count(),
  response: anything('What was answered, for POST and DELETE; null for others.'),
  traceparent: maybeText('The W3C trace context that the caller sent.'),
})

export type HttpRequestRecord = Static<typeof HttpRequestRecord>

export const WaitingTextShape = Type.Object(
  {
    key: Type.String(),
    values: Type.Record(Type.String(), Type.Union([Type.String(), Type.Number()]), {
      description: '`until` in Unix seconds; `error` is quoted.',
    }),
  },
  { title: 'WaitingText', description: 'What the message is made of, for texts in other languages.' },
)

export const WaitingReason = object('WaitingReason', {
  code: oneOf(WAITING_CODES),
  message: Type.String(),
  text: Type.Optional(WaitingTextShape),
  model: maybeText('The model that it waits for.'),
  since: Type.Optional(timestamp('since when.')),
  until: Type.Optional(timestamp('when it can go on, where that is known.')),
})

export const REQUEST_STATUSES = [
  'queued',
  'in_progress',
  'completed',
  'failed',
  'cancelled',
  'expired',
] as const

export const LineRecord = object('LineRecord', {
  id: Type.String(),
  object: Type.Literal('request'),
  kind: Type.Literal('line'),
  batch_id: Type.String(),
  custom_id: Type.String(),
  line: Type.Integer({ minimum: 1 }),
  model: TextOrNull,
  entity: TextOrNull,
  conversation: TextOrNull,
  tags: TextOrNull,
  status_code: orNull(Type.Integer()),
  attempts: arrayOf(Type.Unknown(), 'Each time the line was sent: when, where, what came back.'),
  upstream: maybeText('The model server that answered.'),
  tier: Type.Optional(count('The tier of that server.')),
  service_tier: maybeText('The service tier that the answer names, by which it is priced.'),
  missing: Type.Optional(
    count('How many choices, vectors or scores the answer has less than were asked for; absent: none.'),
  ),
  incomplete: Type.Optional(
    Type.Boolean({
      description: 'True for a response that the model server calls incomplete; absent for others.',
    }),
  ),
  usage: anything('Tokens; null where there was no result.'),
  cost_usd: amount(),
  shared_from: Type.Optional(
    Type.Object(
      { id: Type.String(), custom_id: Type.String() },
      { description: 'The identical line whose answer or error this one shares; it was not sent itself.' },
    ),
  ),
  error: anything('The error of its result line; null where it succeeded.'),
  traceparent: maybeText('The W3C trace context of the call that created the batch.'),
  status: Type.Optional(oneOf(REQUEST_STATUSES, 'How far the line is, or how it ended.')),
  waiting_reason: maybe(
    WaitingReason,
    'Why it is not sent now, or nothing of its batch is; null where that is, or it has ended.',
  ),
  expires_at: Type.Optional(count('Unix seconds: it ends by then. Of lines that have not ended.')),
  response: Type.Optional(anything('The response, as long as the result file exists.')),
  webhook: Type.Optional(BatchWebhook),
  created: timestamp('when the line was finished.'),
})

export type LineRecord = Static<typeof LineRecord>

export const RequestRecord = Type.Union([HttpRequestRecord, LineRecord], { title: 'RequestRecord' })
