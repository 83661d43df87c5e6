// Signs webhook requests (https://www.standardwebhooks.com), and makes the secrets for that. Signing needs
// the secret itself, so the database keeps it wrapped by the master key, bound to its project and webhook.
import { randomBytes } from 'node:crypto'
import { Webhook, WebhookVerificationError } from 'standardwebhooks'
import type { MasterKey } from '../blobs/master-key.ts'
import { unwrapKey, wrapKey } from '../blobs/wrap-key.ts'
import { invalidParam } from '../domain/errors.ts'
import { WEBHOOK_SECRET } from '../domain/event.ts'
import type { WebhookRow } from '../store/schema.ts'

const SECRET_BYTES = 32
const SECRET = new RegExp(WEBHOOK_SECRET)

interface SigningSecret {
  /** The secret in the form of Standard Webhooks, `whsec_…`; shown once. */
  text: string
  wrapped: string
}

/** Makes a signing secret. `given`: the owner's own secret; null: a new one. Throws invalid_request. */
export function newSigningSecret(
  master: MasterKey,
  project_id: string,
  webhook_id: string,
  given: string | null = null,
): SigningSecret {
  const secret = given === null ? randomBytes(SECRET_BYTES) : chosenSecret(given)
  return { text: spelled(secret), wrapped: wrapKey(secret, project_id, secretName(webhook_id), master) }
}

function chosenSecret(text: string): Buffer {
  if (SECRET.test(text)) return Buffer.from(text.slice('whsec_'.length), 'base64')
  const message =
    '`webhook.secret` must be `whsec_` and the base64 of 32 bytes, such as `openssl rand -base64 32` prints. Leave it out to get one.'
  throw invalidParam('webhook.secret', message)
}

/** The secrets that sign at `now` (Unix ms): the current one, and the previous one during a rotation. */
export function signingSecrets(master: MasterKey, webhook: WebhookRow, now: number): string[] {
  const { id, project_id, wrapped_secret, previous_secret, previous_until } = webhook
  const overlapping = previous_secret !== null && previous_until !== null && now < previous_until
  const wrapped = overlapping ? [wrapped_secret, previous_secret] : [wrapped_secret]
  return wrapped.map((text) => spelled(unwrapKey(text, project_id, secretName(id), master)))
}

function spelled(secret: Buffer): string {
  return `whsec_${secret.toString('base64')}`
}

/** Whether this body was signed with the secret within the last minutes. */
export function isSigned(
  secret: string,
  headers: Readonly<Record<string, string | string[] | undefined>>,
  body: Buffer,
): boolean {
  const named = ['webhook-id', 'webhook-timestamp', 'webhook-signature'].map((name) => [name, headers[name]])
  if (named.some(([, value]) => typeof value !== 'string')) return false
  try {
    new Webhook(secret).verify(body, Object.fromEntries(named), { jsonParse: false })
    return true
  } catch (error) {
    if (error instanceof WebhookVerificationError) return false
    throw error
  }
}

/** The name that a secret is bound to, besides its project. */
export function secretName(webhook_id: string): string {
  return `webhooks/${webhook_id}`
}

/**
 * The headers of Standard Webhooks. Their ID is the event's, so a receiver can recognise an event that arrives twice.
 * `now` is in Unix ms; `secrets` are written `whsec_…`, and the receiver needs one of them.
 */
export function signedHeaders(
  event_id: string,
  body: string,
  secrets: readonly string[],
  now: number,
): Record<string, string> {
  const at = new Date(now)
  return {
    'webhook-id': event_id,
    'webhook-timestamp': String(Math.floor(now / 1000)),
    'webhook-signature': secrets.map((secret) => new Webhook(secret).sign(event_id, at, body)).join(' '),
  }
}
