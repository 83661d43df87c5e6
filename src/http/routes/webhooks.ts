// Webhooks, and what was delivered to them.
import { Type } from 'typebox'
import { secondsOrNull, unixSeconds } from '../../domain/clock.ts'
import { ApiError } from '../../domain/errors.ts'
import { newId } from '../../domain/ids.ts'
import { checkQuotas } from '../../intake/check-quota.ts'
import { replayEvent, replayFailed } from '../../notify/deliver.ts'
import { eventObject, recordTestEvent, wantedTypes } from '../../notify/record-event.ts'
import { newSigningSecret } from '../../notify/signing.ts'
import { webhookUrl } from '../../notify/webhook-url.ts'
import type { WebhookRow } from '../../store/schema.ts'
import {
  deleteWebhook,
  insertWebhook,
  type ListedDelivery,
  listDeliveries,
  listWebhooks,
  lockFailedDeliveries,
  lockWebhook,
  readDelivery,
  readWebhook,
  updateWebhook,
} from '../../store/webhooks.ts'
import {
  CreateWebhook,
  DeletedWebhook,
  DeliveryObject,
  DeliveryStatusShape,
  EventObject,
  ReplayDeliveries,
  ReplayedDeliveries,
  ROTATION_OVERLAP_S_DEFAULT,
  RotateSecret,
  UpdateWebhook,
  WEBHOOK_RULES,
  WebhookObject,
  WebhookWithSecret,
} from '../../wire/event.ts'
import { listOf, PageQuery } from '../../wire/list.ts'
import { callerOf, quotaHolder } from '../access/caller.ts'
import { refuseIdempotencyKey } from '../request/idempotency.ts'
import { readPage } from '../request/page.ts'
import { type App, type RouteDependencies, route } from '../route.ts'

const WebhookParams = Type.Object({ webhook_id: Type.String() })

type Deps = Pick<RouteDependencies, 'store' | 'clock' | 'plans' | 'webhooks' | 'wake'>

export function webhookRoutes(app: App, { store, clock, plans, webhooks, wake }: Deps): void {
  route(app, {
    method: 'POST',
    url: '/v1/webhooks',
    access: ['webhooks:write'],
    doc: {
      operation: 'createWebhook',
      summary: 'Create a webhook',
      description:
        'The service sends events to the URL. Only this answer contains the secret that signs them.',
      answer: WebhookWithSecret,
      rules: { body: WEBHOOK_RULES },
      errors: ['quota_exceeded'],
    },
    accepts: { body: CreateWebhook },
    async handler(request) {
      const { project_id, quotas } = quotaHolder(request, plans)
      refuseIdempotencyKey(request.headers)
      const { url, event_types = null, description = null } = request.body
      const now = clock.now()
      const id = newId('webhook', now)
      const secret = newSigningSecret(webhooks.keys, project_id, id)
      const row: WebhookRow = {
        id,
        project_id,
        url: webhookUrl(url, webhooks.allow_private_networks),
        description,
        event_types: event_types === null ? null : JSON.stringify(event_types),
        wrapped_secret: secret.wrapped,
        previous_secret: null,
        previous_until: null,
        disabled_at: null,
        disabled_reason: null,
        created: now,
      }
      await store.write(async (tx) => {
        await checkQuotas(tx, { project_id, quotas }, { webhooks: 1 })
        await insertWebhook(tx, row)
      })
      return { ...showWebhook(row), secret: secret.text }
    },
  })

  route(app, {
    method: 'GET',
    url: '/v1/webhooks',
    access: ['webhooks:read', 'webhooks:write'],
    doc: {
      operation: 'listWebhooks',
      summary: 'List webhooks',
      answer: listOf(WebhookObject, 'WebhookList'),
    },
    accepts: { querystring: Type.Object(PageQuery) },
    async handler(request) {
      const { project_id } = callerOf(request)
      return await readPage(request.query, {
        exists: async (id) => (await readWebhook(store.read, project_id, id)) !== undefined,
        list: (bounds) => listWebhooks(store.read, project_id, bounds),
        show: showWebhook,
      })
    },
  })

  route(app, {
    method: 'GET',
    url: '/v1/webhooks/:webhook_id',
    access: ['webhooks:read', 'webhooks:write'],
    doc: {
      operation: 'getWebhook',
      summary: 'Read a webhook',
      answer: WebhookObject,
      errors: ['webhook_not_found'],
    },
    accepts: { params: WebhookParams },
    async handler(request) {
      const webhook = await readWebhook(store.read, callerOf(request).project_id, request.params.webhook_id)
      if (!webhook) throw new ApiError('webhook_not_found')
      return showWebhook(webhook)
    },
  })

  route(app, {
    method: 'POST',
    url: '/v1/webhooks/:webhook_id',
    access: ['webhooks:write'],
    doc: {
      operation: 'updateWebhook',
      summary: 'Change, disable or enable a webhook',
      description:
        'Fields that are left out stay unchanged. Events that happen while a webhook is disabled are never sent to it.',
      answer: WebhookObject,
      rules: { body: WEBHOOK_RULES },
      errors: ['webhook_not_found'],
    },
    accepts: { params: WebhookParams, body: UpdateWebhook },
    async handler(request) {
      const { project_id } = callerOf(request)
      const { url, event_types, description, enabled } = request.body ?? {}
      const row = await store.write(async (tx) => {
        const webhook = await lockWebhook(tx, project_id, request.params.webhook_id)
        if (!webhook) throw new ApiError('webhook_not_found')
        const change: Partial<WebhookRow> = {}
        if (url !== undefined) change.url = webhookUrl(url, webhooks.allow_private_networks)
        if (event_types !== undefined) change.event_types = event_types && JSON.stringify(event_types)
        if (description !== undefined) change.description = description
        if (enabled === true) Object.assign(change, { disabled_at: null, disabled_reason: null })
        if (enabled === false && webhook.disabled_at === null)
          Object.assign(change, { disabled_at: clock.now(), disabled_reason: 'disabled by its owner' })
        return Object.keys(change).length === 0 ? webhook : await updateWebhook(tx, webhook.id, change)
      })
      return showWebhook(row)
    },
  })

  route(app, {
    method: 'DELETE',
    url: '/v1/webhooks/:webhook_id',
    access: ['webhooks:write'],
    doc: {
      operation: 'deleteWebhook',
      summary: 'Delete a webhook and its deliveries',
      answer: DeletedWebhook,
      errors: ['webhook_not_found'],
    },
    accepts: { params: WebhookParams },
    async handler(request) {
      const { project_id } = callerOf(request)
      const id = request.params.webhook_id
      await store.write(async (tx) => {
        if (!(await lockWebhook(tx, project_id, id))) throw new ApiError('webhook_not_found')
        await deleteWebhook(tx, id)
      })
      return { id, object: 'webhook', deleted: true }
    },
  })

  route(app, {
    method: 'POST',
    url: '/v1/webhooks/:webhook_id/rotate_secret',
    access: ['webhooks:write'],
    doc: {
      operation: 'rotateWebhookSecret',
      summary: 'Replace the secret of a webhook',
      description:
        'Only this answer contains the new secret. Until the overlap ends, requests are signed with both secrets.',
      answer: WebhookWithSecret,
      errors: ['webhook_not_found'],
    },
    accepts: { params: WebhookParams, body: RotateSecret },
    async handler(request) {
      const { project_id } = callerOf(request)
      refuseIdempotencyKey(request.headers)
      const id = request.params.webhook_id
      const { overlap_seconds = ROTATION_OVERLAP_S_DEFAULT } = request.body ?? {}
      const secret = newSigningSecret(webhooks.keys, project_id, id)
      const row = await store.write(async (tx) => {
        const webhook = await lockWebhook(tx, project_id, id)
        if (!webhook) throw new ApiError('webhook_not_found')
        return await updateWebhook(tx, id, {
          wrapped_secret: secret.wrapped,
          previous_secret: webhook.wrapped_secret,
          previous_until: clock.now() + overlap_seconds * 1000,
        })
      })
      return { ...showWebhook(row), secret: secret.text }
    },
  })

  route(app, {
    method: 'POST',
    url: '/v1/webhooks/:webhook_id/test',
    access: ['webhooks:write'],
    doc: {
      operation: 'testWebhook',
      summary: 'Send a test event',
      description:
        'An event of the type `webhook.test`, to this webhook alone and whatever types it subscribes to, signed and retried like any other. Its delivery shows what the receiver answered.',
      answer: EventObject,
      errors: ['webhook_not_found', 'webhook_disabled'],
    },
    accepts: { params: WebhookParams },
    async handler(request) {
      const { project_id } = callerOf(request)
      const event = await store.write(async (tx) => {
        const webhook = await lockWebhook(tx, project_id, request.params.webhook_id)
        if (!webhook) throw new ApiError('webhook_not_found')
        if (webhook.disabled_at !== null) throw new ApiError('webhook_disabled')
        return await recordTestEvent(tx, webhook, clock.now())
      })
      wake()
      return eventObject(event)
    },
  })

  route(app, {
    method: 'GET',
    url: '/v1/webhooks/:webhook_id/deliveries',
    access: ['webhooks:read', 'webhooks:write'],
    doc: {
      operation: 'listWebhookDeliveries',
      summary: 'List the deliveries of a webhook',
      answer: listOf(DeliveryObject, 'WebhookDeliveryList'),
      errors: ['webhook_not_found'],
    },
    accepts: {
      params: WebhookParams,
      querystring: Type.Object({ ...PageQuery, status: Type.Optional(DeliveryStatusShape) }),
    },
    async handler(request) {
      const id = request.params.webhook_id
      const { status, ...page } = request.query
      if (!(await readWebhook(store.read, callerOf(request).project_id, id)))
        throw new ApiError('webhook_not_found')
      return await readPage(page, {
        exists: async (cursor) => (await readDelivery(store.read, id, cursor)) !== undefined,
        list: (bounds) => listDeliveries(store.read, id, { ...bounds, status }),
        show: showDelivery,
      })
    },
  })

  route(app, {
    method: 'POST',
    url: '/v1/webhooks/:webhook_id/replay',
    access: ['webhooks:write'],
    doc: {
      operation: 'replayWebhookDeliveries',
      summary: 'Send an event again, or all events whose delivery failed',
      description: 'The `webhook-id` stays the same. Delivery is tried for three more days.',
      answer: ReplayedDeliveries,
      errors: ['webhook_not_found', 'event_not_found', 'webhook_disabled'],
    },
    accepts: { params: WebhookParams, body: ReplayDeliveries },
    async handler(request) {
      const { project_id } = callerOf(request)
      refuseIdempotencyKey(request.headers)
      const { event_id } = request.body ?? {}
      const now = clock.now()
      const answer = await store.write(async (tx) => {
        const webhook = await lockWebhook(tx, project_id, request.params.webhook_id)
        if (!webhook) throw new ApiError('webhook_not_found')
        let queued = 1
        if (event_id === undefined) queued = await replayFailed(tx, webhook, now)
        else await replayEvent(tx, webhook, event_id, now)
        const more = await lockFailedDeliveries(tx, webhook.id, 1)
        return { webhook_id: webhook.id, queued, has_more: event_id === undefined && more.length > 0 }
      })
      wake()
      return { object: 'webhook.replay', ...answer }
    },
  })
}

/** A secret is shown only when it was just created, and not by this. */
function showWebhook(webhook: WebhookRow): WebhookObject {
  return {
    id: webhook.id,
    object: 'webhook',
    url: webhook.url,
    description: webhook.description,
    event_types: wantedTypes(webhook),
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
