// Manages webhooks; lists events of batches and limits, and their deliveries; receives the webhooks of batch APIs.
import { type Static, Type } from 'typebox'
import { secondsOrNull, unixSeconds } from '../../domain/clock.ts'
import { ApiError } from '../../domain/errors.ts'
import { newId } from '../../domain/ids.ts'
import { isRecord, parsedJson } from '../../domain/json-record.ts'
import { checkQuotas } from '../../intake/check-quota.ts'
import { replayEvent, replayFailed } from '../../notify/deliver.ts'
import { eventObject, recordTestEvent, wantedTypes } from '../../notify/record-event.ts'
import { isSigned, newSigningSecret } from '../../notify/webhook-signature.ts'
import { webhookUrl } from '../../notify/webhook-url.ts'
import { hastenRemoteBatch } from '../../store/remote-batches.ts'
import { insertRow, lockRow, readOwn, readRow } from '../../store/rows.ts'
import type { WebhookRow } from '../../store/schema.ts'
import type { Writer } from '../../store/store.ts'
import {
  deleteWebhook,
  type ListedDelivery,
  listDeliveries,
  listEvents,
  listWebhooks,
  lockFailedDeliveries,
  updateWebhook,
} from '../../store/webhooks.ts'
import {
  type CreateBatchWebhook,
  CreateWebhook,
  DeletedWebhook,
  DeliveryObject,
  DeliveryStatusShape,
  EventObject,
  EventTypeShape,
  ReplayDeliveries,
  ReplayedDeliveries,
  ROTATION_OVERLAP_S_DEFAULT,
  RotateSecret,
  UpdateWebhook,
  WEBHOOK_RULES,
  WebhookObject,
  WebhookWithSecret,
} from '../../wire/event.ts'
import { listOf, maybeText, PageQuery } from '../../wire/shape.ts'
import { authorize } from '../access/auth.ts'
import { type Caller, quotaHolder } from '../access/caller.ts'
import { objectRoutes, readPage } from '../object-routes.ts'
import type { IdempotentResponse } from '../request/idempotency.ts'
import { type App, found, publicRoute, type RouteDependencies, route } from '../route.ts'

export function eventRoutes(app: App, { store }: RouteDependencies): void {
  objectRoutes(app, '/v1/events/:event_id', {
    access: ['events:read'],
    shape: EventObject,
    list: { summary: 'List events' },
    one: { summary: 'Read an event' },
    query: { type: Type.Optional(EventTypeShape) },
    find: ({ project_id }, id) => readOwn(store.read, 'events', project_id, id),
    rows: ({ project_id }, page) => listEvents(store.read, project_id, page),
    show: eventObject,
  })
}

export function webhookRoutes(app: App, { store, clock, plans, webhooks, wake }: RouteDependencies): void {
  /** Runs `act` with a locked webhook of the project. Throws webhook_not_found. */
  const withLocked = <T>(
    project_id: string,
    id: string,
    act: (tx: Writer, webhook: WebhookRow) => Promise<T>,
  ): Promise<T> =>
    store.write(async (tx) =>
      act(tx, found(await lockRow(tx, 'webhooks', { id, project_id }), 'webhook_not_found')),
    )

  route(app, 'POST /v1/webhooks', {
    access: ['webhooks:write'],
    operation: 'createWebhook',
    summary: 'Create a webhook',
    description: 'The service sends events to the URL. Only this answer contains the secret that signs them.',
    answer: WebhookWithSecret,
    rules: { body: WEBHOOK_RULES },
    errors: ['quota_exceeded'],
    body: CreateWebhook,
    takesNoKey: true,
    async handler(request) {
      const { project_id, quotas } = quotaHolder(request, plans)
      const { url, ...fields } = request.body
      const made = newWebhook(webhooks, project_id, { url }, clock.now())
      const row: WebhookRow = { ...made.row, ...webhookChange(fields, made.row, clock.now()) }
      await store.write(async (tx) => {
        await checkQuotas(tx, { project_id, quotas }, { webhooks: 1 })
        await insertRow(tx, 'webhooks', row)
      })
      return { ...showWebhook(row), secret: made.secret }
    },
  })

  objectRoutes(app, '/v1/webhooks/:webhook_id', {
    access: ['webhooks:read', 'webhooks:write'],
    shape: WebhookObject,
    list: { summary: 'List webhooks' },
    one: { summary: 'Read a webhook' },
    query: {
      batch_id: maybeText('Only the webhook of this batch; without it, those of the project.'),
    },
    find: ({ project_id }, id) => readOwn(store.read, 'webhooks', project_id, id),
    rows: ({ project_id }, page) => listWebhooks(store.read, project_id, page),
    show: showWebhook,
  })

  route(app, 'POST /v1/webhooks/:webhook_id', {
    access: ['webhooks:write'],
    operation: 'updateWebhook',
    summary: 'Change, disable or enable a webhook',
    description:
      'Fields that are left out stay unchanged. Events that happen while a webhook is disabled are never sent to it.',
    answer: WebhookObject,
    rules: { body: WEBHOOK_RULES },
    body: UpdateWebhook,
    async handler({ params, body }, { project_id }) {
      const { url, ...fields } = body ?? {}
      const row = await withLocked(project_id, params.webhook_id, async (tx, webhook) => {
        const change = webhookChange(fields, webhook, clock.now())
        if (url !== undefined) change.url = webhookUrl(url, webhooks.allow_private_networks)
        return Object.keys(change).length === 0 ? webhook : await updateWebhook(tx, webhook.id, change)
      })
      return showWebhook(row)
    },
  })

  route(app, 'DELETE /v1/webhooks/:webhook_id', {
    access: ['webhooks:write'],
    operation: 'deleteWebhook',
    summary: 'Delete a webhook and its deliveries',
    answer: DeletedWebhook,
    async handler({ params: { webhook_id: id } }, { project_id }) {
      await withLocked(project_id, id, (tx) => deleteWebhook(tx, id))
      return { id, object: 'webhook' as const, deleted: true as const }
    },
  })

  route(app, 'POST /v1/webhooks/:webhook_id/rotate_secret', {
    access: ['webhooks:write'],
    operation: 'rotateWebhookSecret',
    summary: 'Replace the secret of a webhook',
    description:
      'Only this answer contains the new secret. Until the overlap ends, requests are signed with both secrets.',
    answer: WebhookWithSecret,
    body: RotateSecret,
    takesNoKey: true,
    async handler(request, { project_id }) {
      const id = request.params.webhook_id
      const { overlap_seconds = ROTATION_OVERLAP_S_DEFAULT } = request.body ?? {}
      const secret = newSigningSecret(webhooks.master, project_id, id)
      const row = await withLocked(project_id, id, (tx, webhook) =>
        updateWebhook(tx, id, {
          wrapped_secret: secret.wrapped,
          previous_secret: webhook.wrapped_secret,
          previous_until: clock.now() + overlap_seconds * 1000,
        }),
      )
      return { ...showWebhook(row), secret: secret.text }
    },
  })

  route(app, 'POST /v1/webhooks/:webhook_id/test', {
    access: ['webhooks:write'],
    operation: 'testWebhook',
    summary: 'Send a test event',
    description:
      'An event of the type `webhook.test`, to this webhook alone and whatever types it subscribes to, signed and retried like any other. Its delivery shows what the receiver answered.',
    answer: EventObject,
    errors: ['webhook_disabled'],
    async handler({ params }, { project_id }) {
      const event = await withLocked(project_id, params.webhook_id, async (tx, webhook) => {
        if (webhook.disabled_at !== null) throw new ApiError('webhook_disabled')
        return await recordTestEvent(tx, webhook, clock.now())
      })
      wake()
      return eventObject(event)
    },
  })

  route(app, 'GET /v1/webhooks/:webhook_id/deliveries', {
    access: ['webhooks:read', 'webhooks:write'],
    operation: 'listWebhookDeliveries',
    summary: 'List the deliveries of a webhook',
    answer: listOf(DeliveryObject),
    query: { ...PageQuery, status: Type.Optional(DeliveryStatusShape) },
    async handler(request, { project_id }) {
      const id = request.params.webhook_id
      const { status, ...page } = request.query
      if (!(await readOwn(store.read, 'webhooks', project_id, id))) throw new ApiError('webhook_not_found')
      return await readPage(page, {
        find: (cursor) => readRow(store.read, 'deliveries', { webhook_id: id, id: cursor }),
        list: (bounds) => listDeliveries(store.read, id, { ...bounds, status }),
        show: showDelivery,
      })
    },
  })

  route(app, 'POST /v1/webhooks/:webhook_id/replay', {
    access: ['webhooks:write'],
    operation: 'replayWebhookDeliveries',
    summary: 'Send an event again, or all events whose delivery failed',
    description: 'The `webhook-id` stays the same. Delivery is tried for three more days.',
    answer: ReplayedDeliveries,
    errors: ['event_not_found', 'webhook_disabled'],
    body: ReplayDeliveries,
    takesNoKey: true,
    async handler(request, { project_id }) {
      const { event_id } = request.body ?? {}
      const now = clock.now()
      const answer = await withLocked(project_id, request.params.webhook_id, async (tx, webhook) => {
        let queued = 1
        if (event_id === undefined) queued = await replayFailed(tx, webhook, now)
        else await replayEvent(tx, webhook, event_id, now)
        const more = await lockFailedDeliveries(tx, webhook.id, 1)
        return { webhook_id: webhook.id, queued, has_more: event_id === undefined && more.length > 0 }
      })
      wake()
      return { object: 'webhook.replay' as const, ...answer }
    },
  })
}

/**
 * Makes a webhook for events of every type, and the text of its secret. `param`: the parameter with its fields. Throws
 * invalid_request.
 */
export function newWebhook(
  { master, allow_private_networks }: RouteDependencies['webhooks'],
  project_id: string,
  { url, secret = null }: { url: string; secret?: string | null },
  now: number,
  param = '',
): { row: WebhookRow; secret: string } {
  const id = newId('webhook', now)
  const signing = newSigningSecret(master, project_id, id, secret)
  const row = {
    id,
    project_id,
    url: webhookUrl(url, allow_private_networks, `${param}url`),
    description: null,
    event_types: null,
    batch_id: null,
    line: null,
    wrapped_secret: signing.wrapped,
    previous_secret: null,
    previous_until: null,
    disabled_at: null,
    disabled_reason: null,
    created: now,
  }
  return { row, secret: signing.text }
}

/** The webhook that is made with a batch or a single request. */
export interface OwnWebhook {
  row: WebhookRow
  /** The signing secret, if it was made here. */
  secret: string | undefined
}

/** The webhook that a call asks for; null: none. Throws invalid_request and missing_scope. */
export function ownWebhook(
  { webhooks, clock }: Pick<RouteDependencies, 'webhooks' | 'clock'>,
  caller: Caller,
  order: CreateBatchWebhook | undefined | null,
): OwnWebhook | null {
  if (order == null) return null
  authorize(caller, ['webhooks:write'])
  const made = newWebhook(webhooks, caller.project_id, order, clock.now(), 'webhook.')
  return { row: made.row, secret: order.secret == null ? made.secret : undefined }
}

/** Adds the secret to the first answer of a call. It is not stored with the answer that repeated calls get. */
export function withSecret(answer: IdempotentResponse, webhook: OwnWebhook | null): IdempotentResponse {
  if (webhook === null || answer.replayed) return answer
  const { webhook: shown, ...rest } = JSON.parse(answer.text)
  return { ...answer, text: JSON.stringify({ ...rest, webhook: { ...shown, secret: webhook.secret } }) }
}

/** The changes of a webhook; omitted fields stay unchanged. */
export function webhookChange(
  { event_types, description, enabled }: Omit<NonNullable<Static<typeof UpdateWebhook>>, 'url'>,
  webhook: WebhookRow,
  now: number,
): Partial<WebhookRow> {
  const change: Partial<WebhookRow> = {}
  if (event_types !== undefined) change.event_types = event_types && JSON.stringify(event_types)
  if (description !== undefined) change.description = description
  if (enabled === true) Object.assign(change, { disabled_at: null, disabled_reason: null })
  if (enabled === false && webhook.disabled_at === null)
    Object.assign(change, { disabled_at: now, disabled_reason: 'disabled by its owner' })
  return change
}

/** Shows a webhook without its secret, which only the answer to its creation has. */
export function showWebhook(webhook: WebhookRow): WebhookObject {
  return {
    id: webhook.id,
    object: 'webhook',
    url: webhook.url,
    description: webhook.description,
    event_types: wantedTypes(webhook),
    batch_id: webhook.batch_id ?? undefined,
    enabled: webhook.disabled_at === null,
    disabled_reason: webhook.disabled_reason,
    created: unixSeconds(webhook.created),
  }
}

function showDelivery(delivery: ListedDelivery): DeliveryObject {
  return {
    id: delivery.id,
    object: 'webhook.delivery',
    webhook_id: delivery.webhook_id,
    event_id: delivery.event_id,
    event_type: delivery.type,
    status: delivery.status,
    attempts: delivery.attempts,
    last_status_code: delivery.last_status,
    last_error: delivery.last_error,
    created: unixSeconds(delivery.created),
    last_attempt_at: secondsOrNull(delivery.last_attempt_at),
    next_attempt_at: secondsOrNull(delivery.next_attempt_at),
  }
}

// POST /v1/batch-apis/webhook: a batch API reports that one of its batches has ended. The call needs no key but a
// signature (Standard Webhooks) by the secret of an upstream, and can only cause an early poll of a batch of that
// upstream. Unknown batches and repeated messages are answered like any other.

export function batchApiWebhookRoute(
  app: App,
  { store, clock, wake, batchApiSecrets }: RouteDependencies,
): void {
  publicRoute(app, 'POST /v1/batch-apis/webhook', {
    raw: true,
    doc: {
      operation: 'receiveBatchApiWebhook',
      summary: 'A batch API tells of a batch',
      description:
        'For the webhooks of batch APIs that are upstreams, signed as Standard Webhooks say with the `webhook_secret` of the upstream. The batch that the event names in `data.id` is looked at now; batches that are not known are answered alike.',
      answer: Type.Object({ received: Type.Literal(true) }),
      errors: ['invalid_signature', 'unsupported_media_type', 'payload_too_large', 'request_timeout'],
    },
    async handler({ headers, body, log }) {
      const bytes = Buffer.isBuffer(body) ? body : Buffer.alloc(0)
      const signed = batchApiSecrets().filter(({ secret }) => isSigned(secret, headers, bytes))
      if (signed.length === 0) throw new ApiError('invalid_signature')
      const remote_id = batchOf(bytes)
      const upstreams = [...new Set(signed.map(({ upstream }) => upstream))]
      const isKnown =
        remote_id !== null &&
        (await store.write((tx) => hastenRemoteBatch(tx, remote_id, upstreams, clock.now())))
      log.debug({ remote_batch: remote_id, upstreams, known: isKnown }, 'a batch API told of a batch')
      if (isKnown) wake()
      return { received: true as const }
    },
  })
}

/** The batch of a report, in `data.id` as OpenAI and Offpeak send it. */
function batchOf(bytes: Buffer): string | null {
  const event = parsedJson(bytes.toString('utf8'))
  const data = isRecord(event) ? event.data : null
  const id = isRecord(data) ? data.id : null
  return typeof id === 'string' && !id.includes('\0') ? id : null
}
