// An audit record as the API shows it: of an HTTP call, or of one line of a batch.
import { type Static, Type } from 'typebox'
import { timestamp } from './list.ts'

const TextOrNull = Type.Union([Type.String(), Type.Null()])

export const HttpRequestRecord = Type.Object(
  {
    id: Type.String({ description: 'Begins with `req_`.' }),
    object: Type.Literal('request'),
    kind: Type.Literal('http'),
    method: Type.String(),
    path: Type.String(),
    status_code: Type.Integer(),
    api_key_id: Type.Union([Type.String(), Type.Null()], {
      description: 'The key; with an `address`, the one that the call named, if any, be it valid or not.',
    }),
    address: Type.Optional(
      Type.String({ description: 'Where a call came from that no key vouched for; for operators.' }),
    ),
    entity: TextOrNull,
    created: timestamp('when it was answered.'),
    duration_ms: Type.Integer({ minimum: 0 }),
    response: Type.Unknown({ description: 'What was answered, for POST and DELETE; null for others.' }),
    traceparent: Type.Optional(Type.String({ description: 'The W3C trace context that the caller sent.' })),
  },
  { title: 'HttpRequestRecord' },
)

export type HttpRequestRecord = Static<typeof HttpRequestRecord>

export const LineRecord = Type.Object(
  {
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
    status_code: Type.Union([Type.Integer(), Type.Null()]),
    attempts: Type.Array(Type.Unknown(), {
      description: 'Each time the line was sent: when, where, what came back.',
    }),
    upstream: Type.Optional(Type.String({ description: 'The model server that answered.' })),
    tier: Type.Optional(Type.Integer({ minimum: 0, description: 'The tier of that server.' })),
    usage: Type.Unknown({ description: 'Tokens; null where there was no result.' }),
    cost_usd: Type.Number({ minimum: 0 }),
    shared_from: Type.Optional(
      Type.Object(
        { id: Type.String(), custom_id: Type.String() },
        { description: 'The identical line whose answer or error this one shares; it was not sent itself.' },
      ),
    ),
    error: Type.Unknown({ description: 'The error of its result line; null where it succeeded.' }),
    traceparent: Type.Optional(
      Type.String({ description: 'The W3C trace context of the call that created the batch.' }),
    ),
    response: Type.Optional(
      Type.Unknown({ description: 'The response, as long as the result file exists.' }),
    ),
    created: timestamp('when the line was finished.'),
  },
  { title: 'LineRecord' },
)

export const RequestRecord = Type.Union([HttpRequestRecord, LineRecord], { title: 'RequestRecord' })
