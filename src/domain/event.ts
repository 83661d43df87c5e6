// The types of events. An event is written in the transaction that it reports, so every such transaction that
// commits has its event, and no other does.

/** The ends of single requests, and of background responses. A webhook is sent them if it names them: they may be very many. */
const REQUEST_EVENT_TYPES = [
  'request.completed',
  'request.failed',
  'request.expired',
  'request.cancelled',
  'response.completed',
  'response.failed',
  'response.incomplete',
  'response.cancelled',
] as const

/** The types that a webhook is sent which names none. */
export const DEFAULT_EVENT_TYPES = [
  'batch.completed',
  'batch.failed',
  'batch.expired',
  'batch.cancelled',
  'batch.output_delivered',
  'batch.output_failed',
  'limit.threshold_reached',
  'limit.reached',
] as const

/** The types that a webhook can subscribe to. */
export const EVENT_TYPES = [...DEFAULT_EVENT_TYPES, ...REQUEST_EVENT_TYPES] as const

/** The type of an event that is sent to one webhook at its owner's request. */
export const TEST_EVENT = 'webhook.test'

export type SubscribedType = (typeof EVENT_TYPES)[number]
export type EventType = SubscribedType | typeof TEST_EVENT

/** The form of a webhook's signing secret: `whsec_` and the base64 of 32 bytes. */
export const WEBHOOK_SECRET = '^whsec_[A-Za-z0-9+/]{43}=$'
