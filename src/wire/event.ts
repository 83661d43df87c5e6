// An event as the API shows it, and as webhooks receive it.
import { type Static, Type } from 'typebox'
import { EVENT_TYPES, type EventType, TEST_EVENT } from '../domain/event.ts'
import { timestamp } from './timestamp.ts'

export const EventTypeShape = Type.Unsafe<EventType>({ type: 'string', enum: [...EVENT_TYPES, TEST_EVENT] })

export const EventObject = Type.Object(
  {
    id: Type.String({ description: 'Begins with `evt_`; the `webhook-id` of every delivery.' }),
    object: Type.Literal('event'),
    type: EventTypeShape,
    timestamp: Type.String({ description: 'When it happened, in ISO 8601, as Standard Webhooks have it.' }),
    created: timestamp('the same as `timestamp`.'),
    created_at: timestamp('the same, for OpenAI clients.'),
    data: Type.Unsafe<Record<string, unknown>>({
      type: 'object',
      description: 'What happened; depends on the type.',
    }),
  },
  {
    title: 'Event',
    examples: [
      {
        id: 'evt_01k0a7c5m3q8r2t6v9x1z4b7dg',
        object: 'event',
        type: 'batch.completed',
        timestamp: '2026-01-01T00:05:00.000Z',
        created: 1767225900,
        created_at: 1767225900,
        data: {
          id: 'batch_01k0a6w3f2n8s5v7y1c4e6g9hj',
          batch_id: 'batch_01k0a6w3f2n8s5v7y1c4e6g9hj',
          status: 'completed',
          input_file_id: 'file_01k0a6v1h8e5q6t2m3x4z9b7cd',
          output_file_id: 'file_01k0a7c5m2p4s6v8y1c3e5g7hj',
          error_file_id: null,
          request_counts: { total: 12, completed: 12, failed: 0 },
          cost_usd: 0.00126,
          metadata: { entity: 'user:42' },
        },
      },
    ],
  },
)

export type EventObject = Static<typeof EventObject>
