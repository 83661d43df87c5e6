// Describes Anthropic's Message Batches: their objects, pages and errors. Only the routes of that API have these
// shapes, for clients that know no other.
import { type Static, Type } from 'typebox'
import type { WireError } from '../domain/errors.ts'
import { between, count, maybe, maybeText, object, oneOf, orNull, text } from './shape.ts'

function moment(description: string) {
  return orNull(Type.String({ format: 'date-time' }), description)
}

const Counts = object('MessageBatchCounts', {
  processing: count('All requests until the batch has ended; then 0.'),
  succeeded: count(),
  errored: count(),
  canceled: count(),
  expired: count(),
})

export const MessageBatch = object(
  'MessageBatch',
  {
    id: text('The ID of the batch, here and at `/v1/batches`.'),
    type: Type.Literal('message_batch'),
    processing_status: oneOf(['in_progress', 'canceling', 'ended']),
    request_counts: Counts,
    created_at: Type.String({ format: 'date-time' }),
    expires_at: Type.String({ format: 'date-time', description: 'Nothing runs past it.' }),
    ended_at: moment('When its last request ended.'),
    cancel_initiated_at: moment('When its cancel was accepted.'),
    archived_at: moment('When its results were deleted or expired.'),
    results_url: orNull(
      Type.String(),
      'Where its results are; null before it has ended, and without results.',
    ),
  },
  {
    id: 'batch_01k0a6w3f2n8s5v7y1c4e6g9hj',
    type: 'message_batch',
    processing_status: 'ended',
    request_counts: { processing: 0, succeeded: 11, errored: 1, canceled: 0, expired: 0 },
    created_at: '2026-01-01T00:01:00.000Z',
    expires_at: '2026-01-02T00:01:00.000Z',
    ended_at: '2026-01-01T00:02:30.000Z',
    cancel_initiated_at: null,
    archived_at: null,
    results_url: 'http://127.0.0.1:8080/v1/messages/batches/batch_01k0a6w3f2n8s5v7y1c4e6g9hj/results',
  },
)
export type MessageBatch = Static<typeof MessageBatch>

export const CreateMessageBatch = object('CreateMessageBatch', {
  requests: Type.Array(
    Type.Object(
      {
        custom_id: text('Names the request in the results; each another.'),
        params: Type.Unsafe<object>({
          type: 'object',
          description: 'A request of the Messages API. It is sent as the bytes that came.',
        }),
      },
      { additionalProperties: false },
    ),
    { description: '1 to 100,000 requests, in a body of 256 MiB at most.' },
  ),
})

export const MESSAGE_PAGE_DEFAULT = 20

export const MessagePageQuery = {
  limit: Type.Optional(between(1, 1000, 'How many to return.', MESSAGE_PAGE_DEFAULT)),
  before_id: maybeText('Those right before this one in the list, newer than it.'),
  after_id: maybeText('Those right behind this one, older than it.'),
}

export const MessageBatchList = object('MessageBatchList', {
  data: Type.Array(MessageBatch),
  has_more: Type.Boolean(),
  first_id: orNull(Type.String()),
  last_id: orNull(Type.String()),
})

export const DeletedMessageBatch = object('DeletedMessageBatch', {
  id: Type.String(),
  type: Type.Literal('message_batch_deleted'),
})

// Errors.

/** Whether a call gets all its answers, errors included, in Anthropic's format. */
export function isMessagesPath(url: string): boolean {
  return /^\/v1\/messages(?:[/?]|$)/.test(url)
}

const TYPES: Readonly<Record<number, string>> = {
  401: 'authentication_error',
  403: 'permission_error',
  404: 'not_found_error',
  408: 'timeout_error',
  409: 'conflict_error',
  413: 'request_too_large',
  429: 'rate_limit_error',
  503: 'overloaded_error',
}

export const MessagesError = object('MessagesError', {
  type: Type.Literal('error'),
  error: Type.Object({
    type: oneOf([...new Set(Object.values(TYPES)), 'invalid_request_error', 'api_error']),
    message: text('For people; may change.'),
    details: Type.Object({
      error_code: text('What to branch on: one of the codes of the whole service.'),
      param: maybe(Type.String(), 'The parameter that is at fault.'),
    }),
  }),
  request_id: text('Names this call, or of a result its line.'),
})

export function messagesError(
  { code, type: _, message, ...more }: WireError,
  status: number,
  request_id: string,
) {
  const type = TYPES[status] ?? (status >= 500 ? 'api_error' : 'invalid_request_error')
  const details = { error_code: code, ...more }
  return { type: 'error' as const, error: { type, message, details }, request_id }
}
