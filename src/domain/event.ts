// The types of events. An event is written in the transaction that it reports, so every such transaction that
// commits has its event, and no other does.

export const EVENT_TYPES = [
  'batch.completed',
  'batch.failed',
  'batch.expired',
  'batch.cancelled',
  'limit.threshold_reached',
  'limit.reached',
] as const

export type EventType = (typeof EVENT_TYPES)[number]

export function isEventType(text: string): text is EventType {
  return EVENT_TYPES.some((type) => type === text)
}
