// Creates a remote batch of lines of a run, at most once. Each step is stored before its call, under the lease of the
// chunk, so that the worker that claims the chunk after a crash knows what may exist:
//
//   intended   a file may have been uploaded, under a unique name; it is looked up before another is uploaded
//   creating   the batch may have been created; it is looked up, and created again only if it is missing long after
//              the last attempt could have had an effect
//   open       the batch exists, and its ID is known
import {
  BatchApiError,
  type BatchRequest,
  type SeenBatch,
  UndecidedBatch,
  UnusableId,
  type WantedBatch,
} from '../../../backends/batch-api/batch-api.ts'
import { unfinished } from '../../../backends/batch-api/result-line.ts'
import { reasonForCaller, reasonForLog } from '../../../backends/failure-reason.ts'
import { stopReason } from '../../../domain/batch.ts'
import type { EndpointPath } from '../../../domain/endpoint.ts'
import { base32 } from '../../../domain/ids.ts'
import { requestBody } from '../../../jsonl/request-body.ts'
import {
  announceCreation,
  changeRemoteBatch,
  creationAge,
  openRemoteIds,
} from '../../../store/remote-batches.ts'
import { readRow } from '../../../store/rows.ts'
import type { RemoteBatchRow } from '../../../store/schema.ts'
import type { Ports, Store } from '../../../store/store.ts'
import type { LimitGate } from '../../gates/limits/limit-gate.ts'
import type { Pauses } from '../../gates/pauses.ts'
import type { Run } from '../../run.ts'
import type { BatchApiUpstream } from './batch-api-upstream.ts'
import { lastCallAt, recallAt, type Until } from './deadline.ts'
import type { RemoteRows } from './rows.ts'

/** The time in ms from a batch's creation to its first poll. */
const FIRST_LOOK_MS = 250
/** The number of attempts to create a batch before its lines are sent again in another batch, or elsewhere. */
const CREATIONS_MAX = 3
/** The wait in ms before a search for a batch that may have been created; the wait grows with the age of the batch. */
const LOOK_AGAIN_MS_MIN = 500
const LOOK_AGAIN_MS_MAX = 30_000
/** The wait in ms for a batch that may exist, where batches cannot be listed and its lines are paused. */
const PAUSED_MS = 2_000

const TWICE = 'a batch API created a batch twice; the second is cancelled'

/**
 * - `open`: the batch is there.
 * - `returned`: its lines are sent again; `result` is what came of them, and `left` what may be there of it.
 * - `unsent`: it is not, and its lines were paused since, or a limit that was changed keeps them from being sent.
 * - `later`: nobody knows yet; look again at `at` (Unix ms).
 * - `lost`: another worker has the chunk.
 */
export type CreationEnd =
  | { kind: 'open' }
  | {
      kind: 'returned'
      result: BatchApiError['result']
      left: 'nothing' | 'file' | 'batch'
      /** The lines that the batch API blames, if it blames lines. */
      blamed: BatchApiError['blamed']
      isTooMuch?: boolean
      /** Whether the batch API has accepted the lines, and created something unusable. */
      isOwn?: boolean
    }
  | { kind: 'unsent' }
  | { kind: 'later'; at: number }
  | { kind: 'lost' }

interface Creation {
  run: Run
  row: RemoteBatchRow
  /** Whether this worker has just stored the batch. */
  isNew: boolean
  /** The lines, in the order of the file. */
  positions: readonly number[]
  upstream: Pick<BatchApiUpstream, 'api' | 'modelJson' | 'operatorFields'>
  until: Pick<Until, 'signal' | 'isOver'>
}

export interface CreationsOptions extends Pick<Ports, 'store' | 'clock' | 'log'> {
  session: { readonly isCertain: boolean }
  pauses: Pick<Pauses, 'covers'>
  limits: Pick<LimitGate, 'isOver'>
  rows: Pick<RemoteRows, 'mayGiveUp'>
}

export class Creations {
  readonly #options: CreationsOptions

  constructor(options: CreationsOptions) {
    this.#options = options
  }

  /** Continues a creation at the step in its row. */
  async pursue(creation: Creation): Promise<CreationEnd> {
    const { row } = creation
    if (row.state === 'intended') return await this.#upload(creation)
    // It may be there, and nobody waits for it any longer.
    if (creation.until.isOver()) return OVERDUE
    try {
      return await this.#lookUp(creation)
    } catch (error) {
      return await this.#unknown(creation, error)
    }
  }

  async #upload(creation: Creation): Promise<CreationEnd> {
    const { run, row, isNew, until } = creation
    const { signal } = until
    const { api } = creation.upstream
    if (this.#hasStopped(run)) return NOT_SENT
    let file_id: string | null
    try {
      // A worker that crashed may have uploaded it.
      const known = isNew ? null : await api.findFile(row.id, signal)
      if (!isNew && (await this.#mayNotBeSent(creation))) {
        if (known !== null) await api.remove(known, signal)
        return { kind: 'unsent' }
      }
      file_id = known ?? (await api.upload(row.id, batchRequests(creation), signal))
    } catch (error) {
      if (!(error instanceof BatchApiError)) throw error
      if (error instanceof UnusableId) return returned(error, 'nothing')
      if (signal.aborted && !until.isOver()) return { kind: 'later', at: this.#options.clock.now() }
      return returned(error, error.hadNoEffect ? 'nothing' : 'file')
    }
    return await this.#create(creation, file_id)
  }

  async #create(creation: Creation, file_id: string | null): Promise<CreationEnd> {
    const { store, clock, session } = this.#options
    const { run, row, positions } = creation
    const { signal } = creation.until
    const { api } = creation.upstream
    row.file_id = file_id
    const announced = await store.write((tx) => announceCreation(tx, row, run.results.lease))
    if (!announced) return { kind: 'lost' }
    row.state = 'creating'
    row.creations++
    // An attempt that was just made may still take effect: it is not given up for what failed before.
    row.failing_since = null
    if (!session.isCertain || run.stopped !== null) return { kind: 'later', at: clock.now() }
    try {
      const requests = (): BatchRequest[] => batchRequests(creation)
      const endpoint = endpointOf(run, positions)
      // For people who see the batch there.
      const metadata = { offpeak_batch: run.batch.id, offpeak_chunk: String(run.claim.idx) }
      const created = await api.create({ name: row.id, file_id, requests, endpoint, metadata }, signal)
      return await this.#opened(creation, created)
    } catch (error) {
      if (error instanceof BatchApiError && error.hadNoEffect) return returned(error, 'file')
      return await this.#unknown(creation, error)
    }
  }

  async #lookUp(creation: Creation): Promise<CreationEnd> {
    const { store, clock, log, pauses } = this.#options
    const { run, row } = creation
    const { signal } = creation.until
    const { api } = creation.upstream
    // Before it is looked for: what is on its way then may still take effect.
    const ageMs = await creationAge(store.read, row.id)
    const found = await api.find(wantedBatch(store, row), signal)
    const [first, ...others] = found ?? []
    for (const { id } of others) {
      log.warn({ remote_batch: id, first: first?.id }, TWICE)
      await api.cancel(id, signal)
    }
    if (first) return await this.#opened(creation, first)
    if (ageMs < api.settleMs) {
      const restMs = api.settleMs - ageMs
      return { kind: 'later', at: clock.now() + Math.min(restMs, waitMs(ageMs)) }
    }
    if (found === null) {
      const { id: name, upstream } = row
      if (row.creations >= CREATIONS_MAX || this.#hasStopped(run) || hasFaults(creation)) return OVERDUE
      log.warn(
        { upstream, name },
        'a batch API may have created a batch, and its batches cannot be listed; it is created again under the same idempotency key',
      )
    } else if (row.creations >= CREATIONS_MAX) return returnedAs(unfinished(NEVER_KNOWN, row.detail), 'file')
    if (this.#hasStopped(run)) return NOT_SENT
    // What may be there already is in flight.
    if (found !== null && (await this.#mayNotBeSent(creation))) return { kind: 'unsent' }
    if (pauses.covers(run, row.model)) return { kind: 'later', at: clock.now() + PAUSED_MS }
    return await this.#create(creation, row.file_id)
  }

  async #opened(creation: Creation, { id }: SeenBatch): Promise<CreationEnd> {
    const { row } = creation
    const { store, clock } = this.#options
    const poll_at = clock.now() + FIRST_LOOK_MS
    const known = { status: null, detail: null, failing_since: null }
    const change = { ...known, state: 'open' as const, remote_id: id, poll_at }
    // If a power failure takes this back, it is found there by its name.
    if (!(await store.writeAsyncCommit((tx) => changeRemoteBatch(tx, row.id, row.state, change))))
      await this.#cancelUnknown(creation, id)
    row.state = 'open'
    row.remote_id = id
    return { kind: 'open' }
  }

  /** Cancels a batch that the row does not name: another worker has continued with the row meanwhile. */
  async #cancelUnknown({ row, upstream: { api }, until }: Creation, id: string): Promise<void> {
    const { store, log } = this.#options
    const stored = await readRow(store.read, 'remote_batches', { id: row.id })
    if (!stored || stored.state === 'creating' || stored.remote_id === id) return
    log.warn({ remote_batch: id, first: stored.remote_id }, TWICE)
    await api.cancel(id, until.signal)
  }

  /** Decides about a batch that may exist while the batch API does not tell. */
  async #unknown(creation: Creation, error: unknown): Promise<CreationEnd> {
    const { run, row, upstream, until } = creation
    const { store, clock, log, rows } = this.#options
    if (!(error instanceof BatchApiError)) throw error
    if (run.stopped === 'lost') return { kind: 'lost' }
    const now = clock.now()
    if (error instanceof UnusableId) return returned(error, 'file')
    if (until.isOver()) return returned(error, 'batch')
    if (until.signal.aborted) return { kind: 'later', at: now }
    const failing_since = row.failing_since ?? now
    // A batch that is there for all that is known is given as long as any other.
    const isAwaited = error instanceof UndecidedBatch
    const since = isAwaited ? Math.max(failing_since, recallAt(run.batch)) : failing_since
    if (rows.mayGiveUp(row, run.batch, since, false)) return returned(error, 'batch')
    const detail = reasonForCaller(error.result)
    if (row.failing_since === null || row.detail !== detail) {
      log.warn(
        { upstream: row.upstream, name: row.id, reason: reasonForLog(error.result) },
        'it is not known whether a batch API has created a batch; it is looked for',
      )
      const { cancelled_at } = row
      await store.write((tx) =>
        changeRemoteBatch(tx, row.id, row.state, { failing_since, detail, cancelled_at }),
      )
      Object.assign(row, { failing_since, detail })
    }
    const ageMs = now - (row.creating_at ?? row.created)
    return {
      kind: 'later',
      at: now + Math.max(waitMs(ageMs), Math.min(upstream.api.settleMs, LOOK_AGAIN_MS_MIN)),
    }
  }

  /** Whether a pause, a limit, a fault or the end of the window keeps the lines back: they are placed as other lines are. */
  async #mayNotBeSent(creation: Creation): Promise<boolean> {
    const { run, row } = creation
    const { pauses, limits, clock } = this.#options
    if (hasFaults(creation) || pauses.covers(run, row.model) || clock.now() >= lastCallAt(run.batch))
      return true
    return await limits.isOver(run, row.day)
  }

  #hasStopped({ batch, stopped }: Run): boolean {
    return stopped !== null || stopReason(batch, this.#options.clock.now()) !== null
  }
}

/** Whether lines cannot run any more, since the configuration has changed. */
function hasFaults({ run, positions }: Creation): boolean {
  return positions.some((position) => run.lines[position]!.fault !== null)
}

/** The description of a batch that is searched for after the answer to its creation was lost. */
export function wantedBatch(store: Store, row: RemoteBatchRow): WantedBatch {
  const { id: name, file_id, line_count, created: since, upstream } = row
  return { name, file_id, line_count, since, taken: (ids) => openRemoteIds(store.read, upstream, ids) }
}

const NOT_SENT: CreationEnd = returnedAs(unfinished('it was not sent'), 'file')
const NEVER_KNOWN = 'the batch API did not say whether it had created the batch'
const OVERDUE: CreationEnd = returnedAs(unfinished(NEVER_KNOWN), 'batch')

function returnedAs(result: BatchApiError['result'], left: 'file' | 'batch'): CreationEnd {
  return { kind: 'returned', result, left, blamed: null }
}

function returned(error: BatchApiError, left: 'nothing' | 'file' | 'batch'): CreationEnd {
  const { result, blamed, isTooMuch } = error
  return { kind: 'returned', result, left, blamed, isTooMuch, isOwn: error instanceof UnusableId }
}

function waitMs(ageMs: number): number {
  return Math.max(LOOK_AGAIN_MS_MIN, Math.min(LOOK_AGAIN_MS_MAX, ageMs / 2))
}

// Makes the requests of a remote batch. A line's `custom_id` there is its request ID here, so its record there names
// the line; the caller's own custom_id is not sent, as several batches may share it.

/** The name of a line at a batch API. */
export function remoteIdOf(run: Run, position: number): string {
  return remoteId(run, run.lines[position]!.line)
}

export function remoteId({ requestIdPrefix }: Pick<Run, 'requestIdPrefix'>, line: number): string {
  return requestIdPrefix + base32(line)
}

/** The requests of the lines; with entity, tags and conversation where the batch API takes them. */
function batchRequests({ run, positions, upstream }: Creation): BatchRequest[] {
  return positions.map((position) => {
    const line = run.lines[position]!
    const { endpoint, entity, tags, conversation } = line
    const known = Object.entries({ entity, tags, conversation }).filter(([, value]) => value !== null)
    const metadata = upstream.api.lineMetadata && known.length > 0 ? Object.fromEntries(known) : null
    return {
      custom_id: remoteIdOf(run, position),
      endpoint,
      metadata,
      // No operator sets a priority at a batch API.
      body: requestBody(run.bytes, line, upstream, 0, run.triesOf(position)?.kept),
    }
  })
}

export function endpointOf(run: Run, positions: readonly number[]): EndpointPath {
  return run.lines[positions[0] ?? 0]!.endpoint
}
