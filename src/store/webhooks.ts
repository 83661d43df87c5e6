// Webhooks of a project or of one batch, and the state of each delivery of an event to them.
import { BATCH_STATUSES, isTerminal } from '../domain/batch.ts'
import type { EventType } from '../domain/event.ts'
import type { DeliveryStatus } from '../wire/event.ts'
import { type Listed, listed, type Page } from './page.ts'
import { countRows, deleteRows, insertRow, readRow, selectRows, updateRows } from './rows.ts'
import type { DeliveryRow, EventRow, WebhookRow } from './schema.ts'
import type { Reader, Writer } from './store.ts'

/** Events of a project, newest first. */
export async function listEvents(
  db: Reader,
  project_id: string,
  page: Page & { type?: EventType },
): Promise<Listed<EventRow>> {
  const all = selectRows(db, 'events', { project_id }).selectAll()
  return await listed(page.type === undefined ? all : all.where('type', '=', page.type), 'id', page)
}

/**
 * Deletes up to `limit` events from before `cutoff` (Unix ms) and their deliveries, and webhooks of ended batches
 * without further events; returns the number of events.
 */
export async function forgetEvents(tx: Writer, cutoff: number, limit: number): Promise<number> {
  const old = await tx
    .selectFrom('events')
    .select('id')
    .where('created', '<', cutoff)
    .orderBy('created')
    .limit(limit)
    .execute()
  const ids = old.map((row) => row.id)
  if (ids.length === 0) return 0
  const ofBatches = await tx
    .selectFrom('deliveries')
    .innerJoin('webhooks', 'webhooks.id', 'deliveries.webhook_id')
    .innerJoin('batches', 'batches.id', 'webhooks.batch_id')
    .select('webhooks.id')
    .where('deliveries.event_id', 'in', ids)
    .where('batches.status', 'in', BATCH_STATUSES.filter(isTerminal))
    .execute()
  await deleteRows(tx, 'deliveries', { event_id: ids }).execute()
  for (const { id } of ofBatches)
    if ((await countRows(tx, 'deliveries', { webhook_id: id })) === 0) await deleteWebhook(tx, id)
  await deleteRows(tx, 'events', { id: ids }).execute()
  return ids.length
}

/** A page of the webhooks of a batch of the project, or of the project itself. */
export async function listWebhooks(
  db: Reader,
  project_id: string,
  { batch_id = null, ...page }: Page & { batch_id?: string | undefined | null },
): Promise<Listed<WebhookRow>> {
  return await listed(selectRows(db, 'webhooks', { project_id, batch_id }).selectAll(), 'id', page)
}

/**
 * The enabled webhooks of a batch, of single requests of it, or of the project itself (null); none of them can be deleted
 * until the transaction ends.
 */
export async function enabledWebhooks(
  tx: Writer,
  project_id: string,
  batch_id: string | null,
  lines: readonly number[] | null = null,
): Promise<WebhookRow[]> {
  return await selectRows(tx, 'webhooks', { project_id, batch_id, line: lines, disabled_at: null })
    .selectAll()
    .orderBy('id')
    .forKeyShare()
    .execute()
}

export async function updateWebhook(
  tx: Writer,
  id: string,
  change: Partial<Omit<WebhookRow, 'id' | 'project_id' | 'created'>>,
): Promise<WebhookRow> {
  return await updateRows(tx, 'webhooks', { id }).set(change).returningAll().executeTakeFirstOrThrow()
}

/** Disables the webhook: no event is sent to it any more. */
export async function disableWebhook(tx: Writer, id: string, reason: string, now: number): Promise<void> {
  await updateRows(tx, 'webhooks', { id, disabled_at: null })
    .set({ disabled_at: now, disabled_reason: reason })
    .execute()
}

/** Deletes a webhook, which the caller has locked, with its deliveries; their tasks then end without effect. */
export async function deleteWebhook(tx: Writer, id: string): Promise<void> {
  await deleteRows(tx, 'deliveries', { webhook_id: id }).execute()
  await deleteRows(tx, 'webhooks', { id }).execute()
}

export async function insertDelivery(
  tx: Writer,
  delivery: Pick<DeliveryRow, 'id' | 'webhook_id' | 'event_id' | 'created'>,
): Promise<void> {
  const { created } = delivery
  const row = { ...delivery, status: 'pending' as const, started: created, next_attempt_at: created }
  await insertRow(tx, 'deliveries', row)
}

/** A delivery with the event and the address. */
export interface PendingDelivery {
  delivery: DeliveryRow
  webhook: WebhookRow
  event: EventRow
}

export async function readPendingDelivery(
  db: Reader,
  delivery_id: string,
): Promise<PendingDelivery | undefined> {
  const delivery = await readRow(db, 'deliveries', { id: delivery_id })
  if (!delivery) return undefined
  const webhook = await readRow(db, 'webhooks', { id: delivery.webhook_id })
  const event = await readRow(db, 'events', { id: delivery.event_id })
  return webhook && event && { delivery, webhook, event }
}

export async function updateDelivery(
  tx: Writer,
  id: string,
  change: Partial<Omit<DeliveryRow, 'id' | 'webhook_id' | 'event_id' | 'created'>>,
): Promise<void> {
  await updateRows(tx, 'deliveries', { id }).set(change).execute()
}

export type ListedDelivery = DeliveryRow & Pick<EventRow, 'type'>

export async function listDeliveries(
  db: Reader,
  webhook_id: string,
  page: Page & { status?: DeliveryStatus },
): Promise<Listed<ListedDelivery>> {
  const all = db
    .selectFrom('deliveries')
    .innerJoin('events', 'events.id', 'deliveries.event_id')
    .selectAll('deliveries')
    .select('events.type')
    .where('deliveries.webhook_id', '=', webhook_id)
  const { status } = page
  const deliveries = status === undefined ? all : all.where('deliveries.status', '=', status)
  return await listed(deliveries, 'deliveries.id', page)
}

/** Failed deliveries, oldest first, locked until the transaction ends. */
export async function lockFailedDeliveries(
  tx: Writer,
  webhook_id: string,
  limit: number,
): Promise<DeliveryRow[]> {
  return await selectRows(tx, 'deliveries', { webhook_id, status: 'failed' })
    .selectAll()
    .orderBy('id')
    .limit(limit)
    .forUpdate()
    .execute()
}

const PENDING_MAX = 100

/** A text that changes with the project's newest event and with the running deliveries to its own webhooks. */
export async function deliveryVersions(
  db: Reader,
  project_id: string,
): Promise<{ events: string; deliveries: string }> {
  const newest = await selectRows(db, 'events', { project_id })
    .select('id')
    .orderBy('id', 'desc')
    .limit(1)
    .executeTakeFirst()
  const webhooks = await selectRows(db, 'webhooks', { project_id, batch_id: null })
    .select('id')
    .orderBy('id')
    .execute()
  const webhook_id = webhooks.map(({ id }) => id)
  const pending = await selectRows(db, 'deliveries', { webhook_id, status: 'pending' })
    .select(['id', 'attempts', 'next_attempt_at'])
    .orderBy('webhook_id')
    .orderBy('id')
    .limit(PENDING_MAX)
    .execute()
  return { events: newest?.id ?? '', deliveries: JSON.stringify(pending.map((row) => Object.values(row))) }
}
