// POST /v1/batch-apis/webhook: a batch API reports that one of its batches has ended. The call needs no key but a
// signature (Standard Webhooks) by the secret of an upstream, and can only cause an early poll of a batch of that
// upstream. Unknown batches and repeated messages are answered like any other.
import { Type } from 'typebox'
import { ApiError } from '../../domain/errors.ts'
import { isRecord, parsedJson } from '../../domain/json-record.ts'
import { isSigned } from '../../notify/webhook-signature.ts'
import { hastenRemoteBatch } from '../../store/remote-batches.ts'
import { type App, publicRoute, type RouteDependencies } from '../route.ts'

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

/** OpenAI and Offpeak name the batch in `data.id`. */
function batchOf(bytes: Buffer): string | null {
  const event = parsedJson(bytes.toString('utf8'))
  const data = isRecord(event) ? event.data : null
  const id = isRecord(data) ? data.id : null
  return typeof id === 'string' && !id.includes('\0') ? id : null
}
