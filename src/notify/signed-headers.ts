// The headers of Standard Webhooks (https://www.standardwebhooks.com): any library for them can verify what
// arrives. The ID is the event's, so that a receiver who gets an event twice can tell.
import { Webhook } from 'standardwebhooks'

/** `now` in Unix ms; `secrets` as `whsec_…`, of which the receiver needs to know any one. */
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
