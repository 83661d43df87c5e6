// GET /v1/live: the project's batches as they change. As an event stream, at most once a second; without one, how they
// are now. A stream is one call: its events are neither recorded nor counted against the rate limit.
import { hash } from 'node:crypto'
import { Readable } from 'node:stream'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { isTerminal } from '../../domain/batch.ts'
import { type Clock, every, unixSeconds } from '../../domain/clock.ts'
import { ApiError } from '../../domain/errors.ts'
import { newId } from '../../domain/ids.ts'
import type { Log } from '../../domain/log.ts'
import type { Model } from '../../domain/model.ts'
import { SharedSlots } from '../../domain/project-queue.ts'
import { readBatchProgress } from '../../progress/waiting-reason.ts'
import { listLaterBatches, listOpenBatches } from '../../store/batches.ts'
import { listHttpRequests } from '../../store/calls.ts'
import { isRevoked, readKey } from '../../store/projects.ts'
import type { BatchRow } from '../../store/schema.ts'
import type { Store } from '../../store/store.ts'
import { deliveryVersions } from '../../store/webhooks.ts'
import { listLaneReports, listLiveWorkers } from '../../store/workers.ts'
import type { BatchObject } from '../../wire/batch.ts'
import { LiveUpdate } from '../../wire/status.ts'
import { authenticateSession, consoleTokenOf } from '../access/auth.ts'
import { type Caller, callerOf, quotaHolder } from '../access/caller.ts'
import { whenClosed } from '../response/long-calls.ts'
import { type App, type RouteDependencies, route } from '../route.ts'
import { showBatch } from './batches.ts'

const EVENT_STREAM = 'text/event-stream'
/** The interval in ms of comments in a silent stream, which proxies could close. */
const KEEP_ALIVE_MS = 15_000
/** The unread bytes from which a slow reader gets its missed updates in one event, once it has caught up. */
const BEHIND_BYTES = 64 * 1024
/** The most streams of one key or session. */
const STREAMS_PER_CALLER_MAX = 16
const TOO_MANY = `A key or a session may have ${STREAMS_PER_CALLER_MAX} streams of live updates at once. End one of them first.`
const RETRY_S = 5

export function liveRoute(
  app: App,
  { store, clock, region, models, plans, streams, closing }: RouteDependencies,
): void {
  const feed = new LiveFeed({ store, clock, region, models, log: app.log })
  /** The streams that have not been ended: nothing may be pushed to an ended one, whose reader may be slow. */
  const open = new Set<Readable>()
  const byCaller = new SharedSlots(Number.POSITIVE_INFINITY)
  closing.addEventListener('abort', () => {
    for (const stream of open) end(stream)
  })

  route(app, 'GET /v1/live', {
    access: ['batches:read'],
    operation: 'watchBatches',
    summary: 'Watch the batches of the project',
    description:
      'With `Accept: text/event-stream`, a stream of events `update`, each a LiveUpdate in JSON: first the unfinished batches, then, at most once a second, those that have changed, ended or are new, and `versions` when one has changed. It ends when its key is revoked, or its token has expired. Without that header, one LiveUpdate with the unfinished batches.',
    answer: LiveUpdate,
    also: { [EVENT_STREAM]: LiveUpdate },
    errors: ['quota_exceeded'],
    async handler(request, { project_id, scopes }, reply) {
      const isStream = request.headers.accept?.includes(EVENT_STREAM)
      if (isStream) takeSlots(request, reply)
      const versions = await feed.versions(project_id)
      const unfinished = update(await feed.snapshot(project_id), versions, scopes)
      if (!isStream) return unfinished
      const stream = new Readable({ read() {} })
      follow(request, stream, project_id, unfinished)
      stream.push(eventOf(unfinished))
      if (closing.aborted) end(stream)
      return reply.header('x-accel-buffering', 'no').type(EVENT_STREAM).send(stream)
    },
  })

  /** Takes slots until the answer has ended. Throws quota_exceeded and service_unavailable. */
  function takeSlots(request: FastifyRequest, reply: FastifyReply): void {
    const name = sessionOf(request) ?? callerOf(request).key_id
    if (byCaller.used(name) >= STREAMS_PER_CALLER_MAX)
      throw new ApiError('quota_exceeded', TOO_MANY, { quota: 'streams' }, RETRY_S)
    streams.take(quotaHolder(request, plans), reply.raw)
    const giveBack = byCaller.take(name)
    if (giveBack) whenClosed(reply.raw, giveBack)
  }

  /** Builds an update. Only operators get servers, whose load may reveal other projects. */
  function update(
    batches: BatchObject[],
    { servers, ...others }: LiveUpdate['versions'],
    scopes: Caller['scopes'],
  ): LiveUpdate {
    const versions = servers !== undefined && scopes.has('operator') ? { ...others, servers } : others
    return { object: 'live', at: unixSeconds(clock.now()), batches, versions }
  }

  function end(stream: Readable): void {
    if (open.delete(stream)) stream.push(null)
  }

  function follow(request: FastifyRequest, stream: Readable, project_id: string, seen: LiveUpdate): void {
    const behind = new Map<string, BatchObject>()
    let sentAt = clock.now()
    let sent = JSON.stringify(seen.versions)
    const leave = feed.watch(project_id, seen.batches, (changed, found) => {
      void mayGoOn(request).then((may) => {
        if (!may) end(stream)
      })
      for (const batch of changed) behind.set(batch.id, batch)
      if (!open.has(stream) || stream.readableLength > BEHIND_BYTES) return
      const next = update([...behind.values()], found, callerOf(request).scopes)
      const isQuiet = behind.size === 0 && sent === JSON.stringify(next.versions)
      if (isQuiet && clock.now() - sentAt < KEEP_ALIVE_MS) return
      stream.push(isQuiet ? ': still here\n\n' : eventOf(next))
      behind.clear()
      sent = JSON.stringify(next.versions)
      sentAt = clock.now()
    })
    open.add(stream)
    stream.once('close', () => {
      leave()
      open.delete(stream)
    })
  }

  /** Whether the caller still has access; checked at each poll, since a stream may last for days. */
  async function mayGoOn(request: FastifyRequest): Promise<boolean> {
    const session = sessionOf(request)
    try {
      if (session !== null) {
        await authenticateSession(store.read, session, clock.now())
        return true
      }
      const { key_id, token } = callerOf(request)
      if (token && (token.expires <= clock.now() || (await isRevoked(store.read, token.revoked_by))))
        return false
      const key = await readKey(store.read, key_id)
      return key?.revoked_at === null
    } catch (error) {
      // A database that does not answer now does not end the stream.
      return !(error instanceof ApiError)
    }
  }
}

/** The hash of the call's console session; null for a key, or a person of a proxy. */
function sessionOf(request: FastifyRequest): string | null {
  return callerOf(request).session_expires === null ? null : consoleTokenOf(request.headers.cookie)
}

function eventOf(update: LiveUpdate): string {
  return `event: update\ndata: ${JSON.stringify(update)}\n\n`
}

// Follows the batches of the projects that have watchers. A project is read once a second however many watch it, and
// not at all without watchers. Each watcher gets the batches that have changed since its last update.

const TICK_MS = 1000
/** The most unfinished batches that are followed, the newest ones. */
const BATCHES_MAX = 100
/** The time in ms for which a call counts as a recent change: longer than the poll of a caller without a stream. */
const CHANGED_MS = 30_000
const CHANGES_MAX = 100

/** Called after each poll, also when nothing has changed. */
type Watcher = (changed: readonly BatchObject[], versions: LiveUpdate['versions']) => void

interface Project {
  watchers: Set<Watcher>
  /** The last update about each unfinished batch, by ID. New watchers add to it during a poll. */
  readonly told: Map<string, string>
  /** The greatest ID of the known batches. */
  newest: string
  cancel: () => void
}

interface LiveFeedOptions {
  store: Pick<Store, 'read' | 'failing'>
  clock: Clock
  region: string
  models: ReadonlyMap<string, Model>
  log: Pick<Log, 'warn'>
}

class LiveFeed {
  readonly #options: LiveFeedOptions
  readonly #projects = new Map<string, Project>()

  constructor(options: LiveFeedOptions) {
    this.#options = options
  }

  /** Reads the project's unfinished batches, newest first. */
  async snapshot(project_id: string): Promise<BatchObject[]> {
    return await this.#show(await listOpenBatches(this.#options.store.read, project_id, BATCHES_MAX))
  }

  /** The versions of resources, by their name in paths of recent calls, and of data that no call changes. */
  async versions(project_id: string): Promise<LiveUpdate['versions']> {
    const { store, clock } = this.#options
    const { rows: calls } = await listHttpRequests(store.read, project_id, {
      ...{ since: clock.now() - CHANGED_MS, withoutReads: true, limit: CHANGES_MAX },
    })
    // The newest call of each name is set last.
    const named = calls.toReversed().map(({ id, path }) => [path.split(/[/?]/, 3)[2] ?? '', id])
    const { events, deliveries } = await deliveryVersions(store.read, project_id)
    const workers = (await listLiveWorkers(store.read)).map(({ reported_at: _, ...worker }) => worker)
    return {
      ...Object.fromEntries(named),
      ...(calls[0] && { requests: calls[0].id }),
      events,
      deliveries: hash('sha1', deliveries),
      servers: hash('sha1', JSON.stringify([workers, await listLaneReports(store.read)])),
    }
  }

  /**
   * Calls `watcher` about once a second with changes since the snapshot `seen`, until the returned function is called.
   */
  watch(project_id: string, seen: readonly BatchObject[], watcher: Watcher): () => void {
    const project = this.#projects.get(project_id) ?? this.#open(project_id)
    project.watchers.add(watcher)
    // A batch that ends before the next poll is reported too.
    for (const batch of seen) project.told.set(batch.id, JSON.stringify(batch))
    return () => {
      project.watchers.delete(watcher)
      if (project.watchers.size > 0) return
      project.cancel()
      if (this.#projects.get(project_id) === project) this.#projects.delete(project_id)
    }
  }

  #open(project_id: string): Project {
    // IDs begin with their time: later batches have greater IDs.
    const newest = newId('batch', this.#options.clock.now())
    const project: Project = { watchers: new Set(), told: new Map(), newest, cancel: () => {} }
    this.#projects.set(project_id, project)
    const failed = (err: unknown): void =>
      this.#options.log.warn({ err, project: project_id }, 'batches could not be read for live updates')
    project.cancel = every(this.#options.clock, TICK_MS, () => this.#tick(project_id, project), failed)
    return project
  }

  async #tick(project_id: string, project: Project): Promise<void> {
    const changed = await this.#changed(project_id, project)
    const versions = await this.versions(project_id)
    for (const watcher of project.watchers) watcher(changed, versions)
  }

  async #changed(project_id: string, project: Project): Promise<BatchObject[]> {
    const { read } = this.#options.store
    const open = await listOpenBatches(read, project_id, BATCHES_MAX)
    const isOpen = new Set(open.map(({ id }) => id))
    const ids = [...project.told.keys()].filter((id) => !isOpen.has(id))
    const later = await listLaterBatches(read, project_id, { id: project.newest, ids, limit: BATCHES_MAX })
    const all = [...open, ...later.filter(({ id }) => !isOpen.has(id))]
    const shown = await this.#show(all)
    const changed: BatchObject[] = []
    for (const id of ids) project.told.delete(id)
    for (const batch of shown) {
      const text = JSON.stringify(batch)
      if (project.told.get(batch.id) !== text) changed.push(batch)
      if (isTerminal(batch.status)) project.told.delete(batch.id)
      else project.told.set(batch.id, text)
      if (batch.id > project.newest) project.newest = batch.id
    }
    return changed
  }

  async #show(rows: readonly BatchRow[]): Promise<BatchObject[]> {
    const { store, clock, region, models } = this.#options
    const progress = await readBatchProgress(store, rows, clock.now(), models)
    return rows.map((row) => showBatch(row, { region, compat: null }, progress.get(row.id)))
  }
}
