// Sends events again on request: one event, or all whose delivery has failed.
import { ApiError } from '../domain/errors.ts'
import type { DeliveryRow, WebhookRow } from '../store/schema.ts'
import type { Writer } from '../store/store.ts'
import { hastenTask, insertTask } from '../store/tasks.ts'
import { lockDelivery, lockFailedDeliveries, readEvent, updateDelivery } from '../store/webhooks.ts'
import { queueDelivery } from './record-event.ts'

/** Keeps the transaction short; the caller repeats the call for more. */
const REPLAYED_AT_ONCE_MAX = 1_000

/** Any event of the project, whether or not the webhook subscribes to its type. Throws event_not_found, webhook_disabled. */
export async function replayEvent(
  tx: Writer,
  webhook: WebhookRow,
  event_id: string,
  now: number,
): Promise<void> {
  mustBeEnabled(webhook)
  const event = await readEvent(tx, webhook.project_id, event_id)
  if (!event) throw new ApiError('event_not_found', undefined, { param: 'event_id' })
  const delivery = await lockDelivery(tx, { webhook_id: webhook.id, event_id })
  if (delivery) return await replay(tx, webhook, delivery, now)
  await queueDelivery(tx, { project_id: webhook.project_id, webhook_id: webhook.id, event_id }, now)
}

/** Oldest first; returns the number of deliveries. Throws webhook_disabled. */
export async function replayFailed(tx: Writer, webhook: WebhookRow, now: number): Promise<number> {
  mustBeEnabled(webhook)
  const failed = await lockFailedDeliveries(tx, webhook.id, REPLAYED_AT_ONCE_MAX)
  for (const delivery of failed) await replay(tx, webhook, delivery, now)
  return failed.length
}

async function replay(tx: Writer, webhook: WebhookRow, delivery: DeliveryRow, now: number): Promise<void> {
  const { project_id } = webhook
  await updateDelivery(tx, delivery.id, {
    status: 'pending',
    started: now,
    attempts: 0,
    next_attempt_at: now,
  })
  // A pending delivery has a task already, which only has to run earlier.
  if (delivery.status === 'pending') return await hastenTask(tx, delivery.id, now)
  await insertTask(tx, { kind: 'deliver', subject: delivery.id, project_id, run_at: now }, now)
}

function mustBeEnabled(webhook: WebhookRow): void {
  if (webhook.disabled_at !== null) throw new ApiError('webhook_disabled')
}
