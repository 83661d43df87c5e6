// Keeps the record of every authenticated call. A record is committed before its response is sent, so a caller that has
// a response can read its record. A record contains no secret.
import type { AuditEntry, AuditLog } from '../domain/audit-log.ts'
import type { Clock } from '../domain/clock.ts'
import { withoutSecrets, withoutUrlSecrets } from '../domain/text.ts'
import { keepNewestAnonymousRequests } from '../store/calls.ts'
import { insertRows } from '../store/rows.ts'
import type { AnonymousRequestRow, HttpRequestRow } from '../store/schema.ts'
import type { Store, Writer } from '../store/store.ts'

export class HttpRecords {
  readonly #store: Pick<Store, 'writeAsyncCommit'>
  readonly #log: AuditLog | undefined
  readonly #writes: GroupedWrites<HttpRequestRow>

  constructor(store: Pick<Store, 'writeAsyncCommit'>, log?: AuditLog) {
    this.#store = store
    this.#log = log
    this.#writes = new GroupedWrites(store, (tx, rows) => insertRows(tx, 'http_requests', rows))
  }

  /** Adds a record; resolves once it can be read. */
  add(row: HttpRequestRow): Promise<void> {
    const recorded = withoutItsSecrets(row)
    const { project_id, key_id, entity, traceparent } = recorded
    const owner = {
      'offpeak.project.id': project_id,
      'offpeak.key.id': key_id,
      'offpeak.entity': entity,
    }
    this.#log?.({ ...callEntry(recorded, owner), traceparent })
    return this.#writes.add(recorded)
  }

  /** Updates the record of a call whose answer was changed afterwards. */
  async replace(row: HttpRequestRow): Promise<void> {
    // Exports are ordered by the first time.
    const { id, created: _, ...fields } = withoutItsSecrets(row)
    await this.#store.writeAsyncCommit((tx) =>
      tx.updateTable('http_requests').set(fields).where('id', '=', id).execute(),
    )
  }
}

function callEntry(
  { id, method, path, status, duration_ms, created }: HttpRequestRow | AnonymousRequestRow,
  more: AuditEntry['attributes'],
): AuditEntry {
  const attributes = {
    'offpeak.request.id': id,
    'http.request.method': method,
    'url.path': path.replace(/[?#].*/s, ''),
    'http.response.status_code': status,
    'offpeak.duration_ms': duration_ms,
    ...more,
  }
  return { event: 'offpeak.call', at: created, isFailed: status >= 400, traceparent: null, attributes }
}

/** The record without secrets: more keys may read records than may read a secret. */
function withoutItsSecrets(row: HttpRequestRow): HttpRequestRow {
  const { path, entity, response } = row
  return {
    ...row,
    path: withoutSecrets(path),
    entity: entity === null ? null : withoutSecrets(entity),
    response: response === null ? null : withoutAnswerSecrets(response),
  }
}

/** The URL of a webhook in JSON. */
const WEBHOOK_URL = /"url":"[^"\\]*"/g

/** The response without the query of a webhook's URL, which may hold a secret. */
function withoutAnswerSecrets(json: string): string {
  return withoutSecrets(json).replace(WEBHOOK_URL, withoutUrlSecrets)
}

// Records of rejected calls without a valid key. Anyone can make such calls, so their records are bounded: a maximum
// per minute for each address and for the process, and only the newest are kept. Further calls are only logged.

export const PER_ADDRESS_MAX = 60
export const PER_PROCESS_MAX = 600
const WINDOW_MS = 60_000
const KEPT_MAX = 10_000
/** The number of records after which old ones are deleted. */
const TRIM_EVERY = 500

export class AnonymousRecords {
  readonly #store: Pick<Store, 'writeAsyncCommit'>
  readonly #clock: Clock
  readonly #keptMax: number
  readonly #log: AuditLog | undefined
  readonly #writes: GroupedWrites<AnonymousRequestRow>
  #windowEnds = 0
  #total = 0
  readonly #byAddress = new Map<string, number>()
  #added = 0

  constructor(store: Pick<Store, 'writeAsyncCommit'>, clock: Clock, log?: AuditLog, keptMax = KEPT_MAX) {
    this.#store = store
    this.#log = log
    this.#clock = clock
    this.#keptMax = keptMax
    this.#writes = new GroupedWrites(store, (tx, rows) => insertRows(tx, 'anonymous_requests', rows))
  }

  /** Adds a record; resolves once it can be read, or at once if it exceeds the maximum. */
  async add(row: AnonymousRequestRow): Promise<void> {
    if (!this.#takes(row.address)) return
    const recorded = { ...row, path: withoutSecrets(row.path) }
    this.#log?.(callEntry(recorded, { 'client.address': row.address }))
    await this.#writes.add(recorded)
    if (this.#added++ % TRIM_EVERY === 0)
      await this.#store.writeAsyncCommit((tx) => keepNewestAnonymousRequests(tx, this.#keptMax))
  }

  #takes(address: string): boolean {
    const now = this.#clock.now()
    if (now >= this.#windowEnds) {
      this.#windowEnds = now + WINDOW_MS
      this.#total = 0
      this.#byAddress.clear()
    }
    const count = this.#byAddress.get(address) ?? 0
    if (count >= PER_ADDRESS_MAX || this.#total >= PER_PROCESS_MAX) return false
    this.#byAddress.set(address, count + 1)
    this.#total++
    return true
  }
}

interface Waiting<Row> {
  row: Row
  resolve: () => void
  reject: (error: unknown) => void
}

/**
 * Writes rows in groups: rows that arrive during a commit are written together by the next one. Commits are
 * asynchronous, so a power failure may lose the last rows.
 */
export class GroupedWrites<Row> {
  readonly #store: Pick<Store, 'writeAsyncCommit'>
  readonly #insert: (tx: Writer, rows: readonly Row[]) => Promise<void>
  #waiting: Waiting<Row>[] = []
  #writing = false

  constructor(
    store: Pick<Store, 'writeAsyncCommit'>,
    insert: (tx: Writer, rows: readonly Row[]) => Promise<void>,
  ) {
    this.#store = store
    this.#insert = insert
  }

  /** Adds a row; resolves once it can be read. */
  add(row: Row): Promise<void> {
    return new Promise((resolve, reject) => {
      this.#waiting.push({ row, resolve, reject })
      if (!this.#writing) void this.#flush()
    })
  }

  async #flush(): Promise<void> {
    this.#writing = true
    // Calls that are answered in the same turn of the event loop belong together.
    await new Promise((resolve) => setImmediate(resolve))
    while (this.#waiting.length > 0) {
      const group = this.#waiting
      this.#waiting = []
      const rows = group.map(({ row }) => row)
      try {
        await this.#store.writeAsyncCommit((tx) => this.#insert(tx, rows))
        for (const { resolve } of group) resolve()
      } catch (error) {
        for (const { reject } of group) reject(error)
      }
    }
    this.#writing = false
  }
}
