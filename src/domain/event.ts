// What a project is told of without asking. An event is written in the transaction that makes it true, so
// there is one for each thing that happened and none for what did not.

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
