// An event as the API returns it and as webhooks receive it. Its bytes are the same in every attempt.
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
    created_at: unixSeconds(created),
    data: typeof parsed === 'object' && parsed !== null ? { ...parsed } : {},
  }
}
