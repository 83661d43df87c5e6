// Delivers events: one task for each event and webhook, with a lease like all other work. A fenced transaction
// records each attempt. If a worker crashes before that, another worker sends the event again, so a receiver may get
// an event twice, with the same ID, but never misses one.
import type { Dispatcher } from 'undici'
import type { MasterKey } from '../blobs/master-key.ts'
import { ApiError, messageOf } from '../domain/errors.ts'
import { SharedSlots } from '../domain/project-queue.ts'
import { lockRow, readOwn } from '../store/rows.ts'
import type { DeliveryRow, TaskRow, WebhookRow } from '../store/schema.ts'
import type { Ports, Writer } from '../store/store.ts'
import { finishTask, insertTask, postponeTask, runAtOnce, type TaskHandler } from '../store/tasks.ts'
import {
  disableWebhook,
  lockFailedDeliveries,
  type PendingDelivery,
  readPendingDelivery,
  updateDelivery,
} from '../store/webhooks.ts'
import { type Attempt, postEvent } from './post-event.ts'
import { eventObject, queueDelivery } from './record-event.ts'
import { signedHeaders, signingSecrets } from './webhook-signature.ts'

const ATTEMPT_TIMEOUT_MS = 15_000
const GONE = 410
/** The limit of concurrent deliveries to a webhook, so that an unresponsive receiver does not delay the others. */
const AT_ONCE_PER_WEBHOOK_MAX = 4
const CROWDED_WAIT_MS = 1_000

export interface DeliverDeps extends Pick<Ports, 'store' | 'clock'> {
  random: () => number
  master: MasterKey
  /** Returns the HTTP client of an attempt. */
  agent: () => Promise<Dispatcher>
  timeoutMs?: number
  schedule?: typeof nextAttemptAt
}

export function deliverer(deps: DeliverDeps): TaskHandler {
  const { store, clock } = deps
  const busy = new SharedSlots(Number.POSITIVE_INFINITY)
  return async (task, signal) => {
    const pendingDelivery = await readPendingDelivery(store.read, task.subject)
    if (pendingDelivery?.delivery.status !== 'pending') {
      await store.write((tx) => finishTask(tx, task))
      return
    }
    const { webhook, delivery } = pendingDelivery
    if (webhook.disabled_at !== null) {
      const end = { status: 'failed', next_attempt_at: null, last_error: 'the webhook is disabled' } as const
      return await store.write(async (tx) => {
        if (await finishTask(tx, task)) await updateDelivery(tx, delivery.id, end)
      })
    }
    if (busy.used(webhook.id) >= AT_ONCE_PER_WEBHOOK_MAX) {
      const run_at = clock.now() + CROWDED_WAIT_MS * (1 + deps.random())
      return await store.write((tx) => postponeTask(tx, task, Math.round(run_at), null))
    }
    const release = busy.take(webhook.id)
    try {
      const outcome = await attempt(deps, pendingDelivery, signal)
      await store.write((tx) => recordAttempt(deps, tx, task, pendingDelivery, outcome))
    } finally {
      release?.()
    }
  }
}

async function attempt(
  deps: DeliverDeps,
  pendingDelivery: PendingDelivery,
  signal: AbortSignal,
): Promise<Attempt> {
  const { webhook, event } = pendingDelivery
  const now = deps.clock.now()
  const body = JSON.stringify(eventObject(event))
  let headers: Record<string, string>
  try {
    headers = signedHeaders(event.id, body, signingSecrets(deps.master, webhook, now), now)
  } catch (error) {
    // A receiver would reject an unsigned request, and the operator may restore the key, so none is sent.
    return { delivered: false, status: null, error: `it could not be signed: ${messageOf(error)}`, waitMs: 0 }
  }
  const { clock, timeoutMs: timeout_ms = ATTEMPT_TIMEOUT_MS } = deps
  return await postEvent(
    { agent: await deps.agent(), clock, timeout_ms },
    { url: webhook.url, headers, body },
    signal,
  )
}

async function recordAttempt(
  { clock, random, schedule = nextAttemptAt }: DeliverDeps,
  tx: Writer,
  task: TaskRow,
  { delivery: { id }, webhook, event }: PendingDelivery,
  outcome: Attempt,
): Promise<void> {
  if (!(await finishTask(tx, task))) return
  // The delivery may have been replayed meanwhile, or deleted with its webhook, so it is read again.
  const delivery = await lockRow(tx, 'deliveries', { id })
  if (!delivery) return
  const now = clock.now()
  const attempts = delivery.attempts + 1
  const gone = outcome.status === GONE
  const next =
    outcome.delivered || gone
      ? null
      : schedule({ started: delivery.started, attempts }, now, random(), outcome.waitMs)
  await updateDelivery(tx, id, {
    status: outcome.delivered ? 'delivered' : next === null ? 'failed' : 'pending',
    attempts,
    next_attempt_at: next,
    last_attempt_at: now,
    last_status: outcome.status,
    last_error: outcome.error,
  })
  if (gone) await disableWebhook(tx, webhook.id, 'the receiver answered 410 Gone', now)
  if (next !== null) {
    const { project_id } = event
    await insertTask(tx, { kind: 'deliver', subject: id, project_id, run_at: next }, now)
  }
}

// The retry schedule of failed deliveries: short delays at first, for a receiver that restarts, then longer ones, and a
// last attempt after three days. Jitter spreads the retries of many events over time.

const SECOND_MS = 1_000
const MINUTE_MS = 60 * SECOND_MS
const HOUR_MS = 60 * MINUTE_MS

/** The time from the first attempt to the last. */
export const TRIED_FOR_MS = 72 * HOUR_MS

const DELAYS_MS = [
  5 * SECOND_MS,
  30 * SECOND_MS,
  2 * MINUTE_MS,
  10 * MINUTE_MS,
  30 * MINUTE_MS,
  HOUR_MS,
  2 * HOUR_MS,
  5 * HOUR_MS,
  10 * HOUR_MS,
]
const DELAY_MS_MAX = 12 * HOUR_MS
const JITTER = 0.2

/**
 * The time of the attempt after number `attempts` (from 1), which failed at `now`; null after the last. `chance` is in
 * [0, 1); `wait_ms` is the `Retry-After` of the receiver. Times in Unix ms.
 */
export function nextAttemptAt(
  { started, attempts }: { started: number; attempts: number },
  now: number,
  chance: number,
  wait_ms = 0,
): number | null {
  const end = started + TRIED_FOR_MS
  if (now >= end) return null
  const delayMs = DELAYS_MS[attempts - 1] ?? DELAY_MS_MAX
  const spreadMs = Math.round(delayMs * (1 - JITTER + 2 * JITTER * chance))
  return Math.min(end, now + Math.max(spreadMs, wait_ms))
}

// Sends events again on request: one event, or all whose delivery has failed.

/** The limit of replays in one transaction; the caller repeats the call for more. */
const REPLAYED_AT_ONCE_MAX = 1_000

/** Replays an event of the project of any type. Throws event_not_found, webhook_disabled. */
export async function replayEvent(
  tx: Writer,
  webhook: WebhookRow,
  event_id: string,
  now: number,
): Promise<void> {
  mustBeEnabled(webhook)
  const event = await readOwn(tx, 'events', webhook.project_id, event_id)
  if (!event) throw new ApiError('event_not_found', undefined, { param: 'event_id' })
  const delivery = await lockRow(tx, 'deliveries', { webhook_id: webhook.id, event_id })
  if (delivery) return await replay(tx, webhook, delivery, now)
  await queueDelivery(tx, { project_id: webhook.project_id, webhook_id: webhook.id, event_id }, now)
}

/** Replays failed deliveries, oldest first; returns their number. Throws webhook_disabled. */
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
  // A pending delivery has a task, which only has to run earlier.
  const task = { kind: 'deliver', subject: delivery.id } as const
  if (delivery.status === 'pending') return await runAtOnce(tx, task, now)
  await insertTask(tx, { ...task, project_id, run_at: now }, now)
}

function mustBeEnabled(webhook: WebhookRow): void {
  if (webhook.disabled_at !== null) throw new ApiError('webhook_disabled')
}
