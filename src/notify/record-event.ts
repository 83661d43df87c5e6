// Records an event in the caller's transaction, with a delivery and a task for each webhook that subscribes to its
// type. After a crash all of it exists or none.
import { type EventType, isEventType } from '../domain/event.ts'
import { newId } from '../domain/ids.ts'
import { insertEvent } from '../store/events.ts'
import type { WebhookRow } from '../store/schema.ts'
import type { Writer } from '../store/store.ts'
import { insertTask } from '../store/tasks.ts'
import { enabledWebhooks, insertDelivery } from '../store/webhooks.ts'

export interface NewEvent {
  project_id: string
  type: EventType
  /** What happened, as JSON; it is shown and sent as it is. */
  data: Readonly<Record<string, unknown>>
}

/** `now` in Unix ms. */
export async function recordEvent(
  tx: Writer,
  { project_id, type, data }: NewEvent,
  now: number,
): Promise<void> {
  const event_id = newId('event', now)
  await insertEvent(tx, { id: event_id, project_id, type, data: JSON.stringify(data), created: now })
  for (const webhook of await enabledWebhooks(tx, project_id)) {
    if (subscribes(webhook, type))
      await queueDelivery(tx, { project_id, webhook_id: webhook.id, event_id }, now)
  }
}

/** To be called once for each pair of event and webhook. */
export async function queueDelivery(
  tx: Writer,
  { project_id, webhook_id, event_id }: { project_id: string; webhook_id: string; event_id: string },
  now: number,
): Promise<void> {
  const id = newId('delivery', now)
  await insertDelivery(tx, { id, webhook_id, event_id, created: now })
  await insertTask(tx, { kind: 'deliver', subject: id, project_id, run_at: now }, now)
}

function subscribes(webhook: WebhookRow, type: EventType): boolean {
  const types = wantedTypes(webhook)
  return types === null || types.includes(type)
}

/** The event types of this webhook; null means all. */
export function wantedTypes({ event_types }: Pick<WebhookRow, 'event_types'>): EventType[] | null {
  if (event_types === null) return null
  const types: unknown = JSON.parse(event_types)
  return Array.isArray(types) ? types.filter((one) => typeof one === 'string' && isEventType(one)) : []
}
