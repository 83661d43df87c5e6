// Records an event in the caller's transaction, with a delivery and a task for each webhook that subscribes to its
// type. After a crash all of it exists or none.
import { type EventType, isSubscribedType, type SubscribedType, TEST_EVENT } from '../domain/event.ts'
import { newId } from '../domain/ids.ts'
import type { EventRow, WebhookRow } from '../store/schema.ts'
import type { Writer } from '../store/store.ts'
import { insertTask } from '../store/tasks.ts'
import { enabledWebhooks, insertDelivery, insertEvent } from '../store/webhooks.ts'

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

/** Sends one webhook an event that says nothing but that it arrives; whatever types it subscribes to. */
export async function recordTestEvent(tx: Writer, webhook: WebhookRow, now: number): Promise<EventRow> {
  const { id: webhook_id, project_id } = webhook
  const data = JSON.stringify({ webhook_id })
  const event: EventRow = { id: newId('event', now), project_id, type: TEST_EVENT, data, created: now }
  await insertEvent(tx, event)
  await queueDelivery(tx, { project_id, webhook_id, event_id: event.id }, now)
  return event
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
  return types === null || types.some((wanted) => wanted === type)
}

/** The event types of this webhook; null means all. */
export function wantedTypes({ event_types }: Pick<WebhookRow, 'event_types'>): SubscribedType[] | null {
  if (event_types === null) return null
  const types: unknown = JSON.parse(event_types)
  return Array.isArray(types) ? types.filter((one) => typeof one === 'string' && isSubscribedType(one)) : []
}
