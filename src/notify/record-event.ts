// The one way an event comes into being: in its caller's transaction, with a delivery and a task for each
// webhook that wants it. Either all of it is there after a crash or nothing is, and what is there is delivered.
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
    if (wants(webhook, type)) await queueDelivery(tx, { project_id, webhook_id: webhook.id, event_id }, now)
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

function wants(webhook: WebhookRow, type: EventType): boolean {
  const types = wantedTypes(webhook)
  return types === null || types.includes(type)
}

/** The types of event that this webhook is told of; null: all. */
export function wantedTypes({ event_types }: Pick<WebhookRow, 'event_types'>): EventType[] | null {
  if (event_types === null) return null
  const types: unknown = JSON.parse(event_types)
  return Array.isArray(types) ? types.filter((one) => typeof one === 'string' && isEventType(one)) : []
}
