// The types of events. An event is written in the transaction that it reports, so every such transaction that
// commits has its event, and no other does.

/** The types that a webhook can subscribe to. */
export const EVENT_TYPES = [
  'batch.completed',
  'batch.failed',
  'batch.expired',
  'batch.cancelled',
  'batch.output_delivered',
  'batch.output_failed',
  'limit.threshold_reached',
  'limit.reached',
] as const

/** The type of an event that is sent to one webhook at its owner's request. */
export const TEST_EVENT = 'webhook.test'

export type SubscribedType = (typeof EVENT_TYPES)[number]
export type EventType = SubscribedType | typeof TEST_EVENT
