// The record of an HTTP call as the API shows it.
import { unixSeconds } from '../../../domain/clock.ts'
import { withoutSecrets } from '../../../domain/secret-text.ts'
import type { AnonymousRequestRow, HttpRequestRow } from '../../../store/schema.ts'
import type { HttpRequestRecord } from '../../../wire/request-record.ts'

export function showHttpRequest(row: HttpRequestRow): HttpRequestRecord {
  return {
    id: row.id,
    object: 'request',
    kind: 'http',
    method: row.method,
    path: row.path,
    status_code: row.status,
    api_key_id: row.key_id,
    entity: row.entity,
    created: unixSeconds(row.created),
    duration_ms: row.duration_ms,
    // During an upgrade, processes of an earlier version may still record secrets.
    response: row.response === null ? null : JSON.parse(withoutSecrets(row.response)),
    ...(row.traceparent === null ? {} : { traceparent: row.traceparent }),
  }
}

export function showAnonymousRequest(row: AnonymousRequestRow): HttpRequestRecord {
  return {
    id: row.id,
    object: 'request',
    kind: 'http',
    method: row.method,
    path: row.path,
    status_code: row.status,
    api_key_id: row.key_id,
    address: row.address,
    entity: null,
    created: unixSeconds(row.created),
    duration_ms: row.duration_ms,
    response: null,
  }
}
