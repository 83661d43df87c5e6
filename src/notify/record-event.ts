// Records an event in the caller's transaction, with a delivery and a task for each webhook that subscribes to its
// type: those of the project, and those of the batch that the event is about. After a crash all of it exists or none.

import type { TerminalStatus } from '../domain/batch.ts'
import { unixSeconds } from '../domain/clock.ts'
import {
  DEFAULT_EVENT_TYPES,
  EVENT_TYPES,
  type EventType,
  type SubscribedType,
  TEST_EVENT,
} from '../domain/event.ts'
import { newId } from '../domain/ids.ts'
import { REACHED, WHOLE_PROJECT } from '../domain/limit.ts'
import { inMetric, usd } from '../domain/money.ts'
import { namesIn } from '../domain/text.ts'
import type { Crossing } from '../ledger/settle.ts'
import { insertRow } from '../store/rows.ts'
import type { BatchRow, EventRow, WebhookRow } from '../store/schema.ts'
import { type Store, untilFewer, type Writer } from '../store/store.ts'
import { insertTask } from '../store/tasks.ts'
import { enabledWebhooks, forgetEvents, insertDelivery } from '../store/webhooks.ts'
import type { EventObject } from '../wire/event.ts'

interface NewEvent {
  project_id: string
  type: EventType
  /** The facts of the event, as JSON; shown and sent unchanged. */
  data: Readonly<Record<string, unknown>>
  batch_id?: string
}

/** Records an event; `now` in Unix ms. */
export async function recordEvent(
  tx: Writer,
  { project_id, type, data, batch_id }: NewEvent,
  now: number,
): Promise<void> {
  const webhooks = await enabledWebhooks(tx, project_id, null)
  if (batch_id !== undefined) webhooks.push(...(await enabledWebhooks(tx, project_id, batch_id)))
  const to = webhooks.filter((webhook) => subscribes(webhook, type))
  await recordFor(tx, { project_id, type, data }, to, now)
}

async function recordFor(
  tx: Writer,
  { project_id, type, data }: NewEvent,
  webhooks: readonly WebhookRow[],
  now: number,
): Promise<EventRow> {
  const event = { id: newId('event', now), project_id, type, data: JSON.stringify(data), created: now }
  await insertRow(tx, 'events', event)
  for (const { id: webhook_id } of webhooks)
    await queueDelivery(tx, { project_id, webhook_id, event_id: event.id }, now)
  return event
}

/** The end of a single request. */
export interface LineEnd {
  line: number
  request: Pick<NewEvent, 'type' | 'data'>
  /** The event of the background response; null: the request was none. */
  response: Pick<NewEvent, 'type' | 'data'> | null
}

/** Records the ends of single requests that webhooks are sent: those of the project that name the type, and those of the request. */
export async function recordLineEnds(
  tx: Writer,
  { id, project_id }: BatchRow,
  ends: readonly LineEnd[],
  now: number,
): Promise<void> {
  const ofProject = await enabledWebhooks(tx, project_id, null)
  const lines = ends.map(({ line }) => line)
  const own = Map.groupBy(await enabledWebhooks(tx, project_id, id, lines), ({ line }) => line)
  for (const { line, request, response } of ends)
    for (const event of [request, ...(response ? [response] : [])]) {
      const to = ofProject.filter((webhook) => subscribes(webhook, event.type))
      if (event === request) to.push(...(own.get(line) ?? []))
      if (to.length > 0) await recordFor(tx, { project_id, ...event }, to, now)
    }
}

/** Sends one webhook a test event, whatever types it subscribes to. */
export async function recordTestEvent(tx: Writer, webhook: WebhookRow, now: number): Promise<EventRow> {
  const { id: webhook_id, project_id } = webhook
  return await recordFor(tx, { project_id, type: TEST_EVENT, data: { webhook_id } }, [webhook], now)
}

/** Queues the delivery of an event to a webhook, once for each such pair. */
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
  const types: readonly EventType[] = wantedTypes(webhook) ?? DEFAULT_EVENT_TYPES
  return types.includes(type)
}

/** The event types of this webhook; null means all but those of single requests. */
export function wantedTypes({ event_types }: Pick<WebhookRow, 'event_types'>): SubscribedType[] | null {
  return event_types === null ? null : namesIn(event_types, EVENT_TYPES)
}

/** An event as the API returns it and as webhooks receive it. Its bytes are the same in every attempt. */
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

// The event of a batch that has ended, with the fields that a receiver needs to fetch the results.

/** The event of the batch, which is terminal and has its result files. */
export function batchEnded(batch: BatchRow, status: TerminalStatus): NewEvent {
  const { id, project_id, input_file_id, output_file_id, error_file_id, total, completed, failed, not_run } =
    batch
  const metadata: unknown = batch.metadata === null ? {} : JSON.parse(batch.metadata)
  return {
    project_id,
    batch_id: id,
    type: `batch.${status}`,
    data: {
      // OpenAI's clients read the batch's ID from the field `id`.
      id,
      batch_id: id,
      status,
      input_file_id,
      output_file_id,
      error_file_id,
      request_counts: { total, completed, failed },
      not_run,
      cost_usd: usd(batch.cost_nanos),
      metadata,
    },
  }
}

/** The event of a batch whose results were written to its `output_url`, or will not be. */
export function outputEnded(
  { id, project_id, output_url }: BatchRow,
  status: 'delivered' | 'failed',
  error: string | null,
): NewEvent {
  const data = { id, batch_id: id, output_url, output_url_status: status, output_url_error: error }
  return { project_id, batch_id: id, type: `batch.output_${status}`, data }
}

// The event of a threshold that spend has reached: a warning before the cap, or the cap itself.

/** The event of a crossed threshold; amounts in the limit's metric: USD or tokens. */
export function limitCrossed({ limit, spender, window, threshold, spent }: Crossing): NewEvent {
  const shown = (units: number): number => inMetric(limit.metric, units)
  return {
    project_id: limit.project_id,
    type: threshold === REACHED ? 'limit.reached' : 'limit.threshold_reached',
    data: {
      limit_id: limit.id,
      scope: limit.scope,
      entity: spender === WHOLE_PROJECT ? null : spender,
      entity_type: limit.scope === 'entity_type' ? limit.subject : null,
      key: limit.scope === 'key' ? limit.subject : null,
      model: limit.model || null,
      metric: limit.metric,
      window: limit.window,
      action: limit.action,
      description: limit.description,
      amount: shown(limit.amount),
      threshold,
      spent: shown(spent),
      window_start: unixSeconds(window.start),
      resets_at: unixSeconds(window.end),
    },
  }
}

// Deletes old events and their deliveries, after the retention of audit records.

const AT_ONCE = 500

/** Deletes events from before `cutoff` (Unix ms); returns their number. */
export async function deleteOldEvents(store: Store, cutoff: number): Promise<number> {
  return await untilFewer(AT_ONCE, () => store.write((tx) => forgetEvents(tx, cutoff, AT_ONCE)))
}
