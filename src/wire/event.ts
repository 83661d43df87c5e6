// Describes an event as the API shows it, and as webhooks receive it.
import { type Static, Type } from 'typebox'
import { EVENT_TYPES, TEST_EVENT, WEBHOOK_SECRET } from '../domain/event.ts'
import {
  between,
  count,
  deletedOf,
  flag,
  maybe,
  maybeText,
  object,
  oneOf,
  orNull,
  text,
  timestamp,
} from './shape.ts'

export const EventTypeShape = oneOf([...EVENT_TYPES, TEST_EVENT])

export const EventObject = object(
  'Event',
  {
    id: text('Begins with `evt_`; the `webhook-id` of every delivery.'),
    object: Type.Literal('event'),
    type: EventTypeShape,
    timestamp: text('When it happened, in ISO 8601, as Standard Webhooks have it.'),
    created: timestamp('the same as `timestamp`.'),
    created_at: timestamp('the same, for OpenAI clients.'),
    data: Type.Unsafe<Record<string, unknown>>({
      type: 'object',
      description: 'What happened; depends on the type.',
    }),
  },
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
)

export type EventObject = Static<typeof EventObject>

// Webhooks as the API shows them, and the requests about them.

const TextOrNull = orNull(Type.String())
const SubscribedShape = oneOf(EVENT_TYPES)
const EventTypes = orNull(
  Type.Array(SubscribedShape, { minItems: 1, uniqueItems: true }),
  'The types of event to send; null: all but those of single requests (`request.*`, `response.*`), and those that are still to come.',
)
const Description = orNull(Type.String({ maxLength: 512 }), 'Free text, for you.')

const shown = {
  id: text('Begins with `wh_`.'),
  object: Type.Literal('webhook'),
  url: Type.String(),
  description: TextOrNull,
  event_types: EventTypes,
  batch_id: maybeText('Of a webhook that is sent the events of one batch: that batch.'),
  enabled: Type.Boolean(),
  disabled_reason: TextOrNull,
  created: timestamp('when it was created.'),
}

const example = {
  id: 'wh_01k0a7c5m3q8r2t6v9x1z4b7dg',
  object: 'webhook',
  url: 'https://example.com/offpeak',
  description: null,
  event_types: ['batch.completed', 'batch.expired'],
  enabled: true,
  disabled_reason: null,
  created: 1767225600,
}

export const WebhookObject = object('Webhook', shown, example)
export type WebhookObject = Static<typeof WebhookObject>

export const WebhookWithSecret = object(
  'WebhookWithSecret',
  { ...shown, secret: text('Signs what is sent; `whsec_…`. Shown this once.') },
  { ...example, secret: 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYo=' },
)
export type WebhookWithSecret = Static<typeof WebhookWithSecret>

/** The webhook of one batch, in the answer to the call that creates both. */
export const BatchWebhook = object('BatchWebhook', {
  ...shown,
  secret: maybeText(
    'Signs what is sent. Shown this once, where none was given; `POST …/rotate_secret` makes another one.',
  ),
})

export const CreateBatchWebhook = Type.Object(
  {
    url: text('Where the events of the batch are posted to; https.'),
    secret: maybe(
      Type.String(),
      'Signs what is sent: `whsec_` and the base64 of 32 bytes. Left out, one is made.',
    ),
  },
  { title: 'CreateBatchWebhook', additionalProperties: false },
)
export type CreateBatchWebhook = Static<typeof CreateBatchWebhook>

export const CreateWebhook = object(
  'CreateWebhook',
  {
    url: text('Where events are posted to; https.'),
    event_types: Type.Optional(EventTypes),
    description: Type.Optional(Description),
  },
  { url: 'https://example.com/offpeak', event_types: ['batch.completed'] },
)
/** The rules for URLs of webhooks; private networks may also allow plain http (notify/webhook-url.ts). */
export const WEBHOOK_RULES = {
  properties: {
    url: { format: 'uri', pattern: '^https://', maxLength: 2048 },
    secret: { pattern: WEBHOOK_SECRET },
  },
}

/** The shape of a body of a POST that may be left out. */
function optionalBody<T extends Parameters<typeof Type.Object>[0]>(properties: T, title: string) {
  return orNull(object(title, properties))
}

export const UpdateWebhook = optionalBody(
  {
    url: Type.Optional(Type.String()),
    event_types: Type.Optional(EventTypes),
    description: Type.Optional(Description),
    enabled: Type.Optional(flag('False: nothing is sent until it is enabled again.')),
  },
  'UpdateWebhook',
)

export const ROTATION_OVERLAP_S_DEFAULT = 24 * 3600
const ROTATION_OVERLAP_S_MAX = 7 * 24 * 3600

export const RotateSecret = optionalBody(
  {
    overlap_seconds: Type.Optional(
      between(
        0,
        ROTATION_OVERLAP_S_MAX,
        'How long the old secret signs beside the new one.',
        ROTATION_OVERLAP_S_DEFAULT,
      ),
    ),
  },
  'RotateSecret',
)

export const ReplayDeliveries = optionalBody(
  { event_id: maybeText('This event; without it, all whose delivery has failed.') },
  'ReplayDeliveries',
)

export const ReplayedDeliveries = object('ReplayedDeliveries', {
  object: Type.Literal('webhook.replay'),
  webhook_id: Type.String(),
  queued: count('How many events are sent again.'),
  has_more: flag('Whether more deliveries have failed: ask again.'),
})
export type ReplayedDeliveries = Static<typeof ReplayedDeliveries>

export const DeletedWebhook = deletedOf('webhook', 'DeletedWebhook')

export const DELIVERY_STATUSES = ['pending', 'delivered', 'failed'] as const
export type DeliveryStatus = (typeof DELIVERY_STATUSES)[number]
export const DeliveryStatusShape = oneOf(DELIVERY_STATUSES)

export const DeliveryObject = object('WebhookDelivery', {
  id: text('Begins with `dlv_`.'),
  object: Type.Literal('webhook.delivery'),
  webhook_id: Type.String(),
  event_id: Type.String(),
  event_type: EventTypeShape,
  status: DeliveryStatusShape,
  attempts: count('Since it was queued, or last replayed.'),
  last_status_code: orNull(Type.Integer(), "The receiver's last answer; null where there was none."),
  last_error: orNull(
    Type.String(),
    'Why the last attempt failed, with the beginning of what the receiver said.',
  ),
  created: timestamp('when it was queued.'),
  last_attempt_at: orNull(timestamp('when it was last tried.')),
  next_attempt_at: orNull(timestamp('when it is tried next; null: no more.')),
})
export type DeliveryObject = Static<typeof DeliveryObject>
