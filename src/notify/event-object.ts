// An event as the API shows it and as it is sent: the same, so that a receiver and a reader of the list see
// one thing. Its bytes are the same at every attempt.
import { unixSeconds } from '../domain/clock.ts'
import type { EventRow } from '../store/schema.ts'
import type { EventObject } from '../wire/event.ts'

export function eventObject({ id, type, data, created }: EventRow): EventObject {
  const parsed: unknown = JSON.parse(data)
  return {
    id,
    object: 'event',
    type,
    timestamp: new Date(created).toISOString(),
    created: unixSeconds(created),
    data: typeof parsed === 'object' && parsed !== null ? { ...parsed } : {},
  }
}
