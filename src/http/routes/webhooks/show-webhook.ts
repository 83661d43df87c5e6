// Rows of webhooks and deliveries as the API shows them; a secret is shown only when it was just created.
import { unixSeconds } from '../../../domain/clock.ts'
import { wantedTypes } from '../../../notify/record-event.ts'
import type { WebhookRow } from '../../../store/schema.ts'
import type { ListedDelivery } from '../../../store/webhooks.ts'
import type { DeliveryObject, WebhookObject } from '../../../wire/webhook.ts'

export function showWebhook(webhook: WebhookRow): WebhookObject {
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

export function showDelivery(delivery: ListedDelivery): DeliveryObject {
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

function secondsOrNull(ms: number | null): number | null {
  return ms === null ? null : unixSeconds(ms)
}
