// GET /v1/live: the project's batches as they change. As an event stream, at most once a second; without one, how they
// are now. A stream is one call: its events are neither recorded nor counted against the rate limit.
import { Readable } from 'node:stream'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { unixSeconds } from '../../../domain/clock.ts'
import { ApiError } from '../../../domain/errors.ts'
import { SharedSlots } from '../../../domain/shared-slots.ts'
import type { BatchObject } from '../../../wire/batch.ts'
import { LiveUpdate } from '../../../wire/live.ts'
import { authenticate, authenticateSession } from '../../access/auth.ts'
import { callerOf, planOf } from '../../access/caller.ts'
import { consoleTokenOf } from '../../access/console-cookie.ts'
import type { ProjectSlots } from '../../request/project-slots.ts'
import { whenClosed } from '../../response/when-closed.ts'
import { route } from '../../route.ts'
import type { RouteDependencies } from '../../route-dependencies.ts'
import type { App } from '../../type-provider.ts'
import { LiveFeed } from './live-feed.ts'

const EVENT_STREAM = 'text/event-stream'
/** So that nobody on the way takes a silent stream for a broken one. */
const KEEP_ALIVE_MS = 15_000
/** A reader that is this far behind gets what it missed in one event, once it has caught up. */
const BEHIND_BYTES = 64 * 1024
/** Of one key or session. */
const STREAMS_PER_CALLER_MAX = 16
const TOO_MANY = `A key or a session may have ${STREAMS_PER_CALLER_MAX} streams of live updates at once. End one of them first.`
const RETRY_S = 5

type Deps = Pick<RouteDependencies, 'store' | 'clock' | 'region' | 'models' | 'plans'> & {
  streams: ProjectSlots
}

export function liveRoute(app: App, { store, clock, region, models, plans, streams }: Deps): void {
  const feed = new LiveFeed({ store, clock, region, models, log: app.log })
  const open = new Set<Readable>()
  const byCaller = new SharedSlots(Number.POSITIVE_INFINITY)
  app.addHook('preClose', async () => {
    for (const stream of open) stream.push(null)
  })

  route(app, {
    method: 'GET',
    url: '/v1/live',
    access: ['batches:read'],
    doc: {
      operation: 'watchBatches',
      summary: 'Watch the batches of the project',
      description:
        'With `Accept: text/event-stream`, a stream of events `update`, each a LiveUpdate in JSON: first the unfinished batches, then, at most once a second, those that have changed, ended or are new. It ends when its key is revoked. Without that header, one LiveUpdate with the unfinished batches.',
      answer: LiveUpdate,
      also: { [EVENT_STREAM]: LiveUpdate },
      errors: ['quota_exceeded'],
    },
    accepts: {},
    async handler(request, reply) {
      const { project_id } = callerOf(request)
      if (!request.headers.accept?.includes(EVENT_STREAM)) return update(await feed.snapshot(project_id))
      takeSlots(request, reply)
      const unfinished = update(await feed.snapshot(project_id))
      const stream = new Readable({ read() {} })
      follow(request, stream, project_id, unfinished.batches)
      stream.push(eventOf(unfinished))
      return reply
        .headers({ 'cache-control': 'no-store', 'x-accel-buffering': 'no' })
        .type(EVENT_STREAM)
        .send(stream)
    },
  })

  /** Until the answer has ended. Throws quota_exceeded and service_unavailable. */
  function takeSlots(request: FastifyRequest, reply: FastifyReply): void {
    const caller = callerOf(request)
    const name = consoleTokenOf(request.headers.cookie) ?? caller.key_id
    if (byCaller.used(name) >= STREAMS_PER_CALLER_MAX)
      throw new ApiError('quota_exceeded', TOO_MANY, { quota: 'streams' }, RETRY_S)
    const { quotas } = planOf(plans, caller)
    streams.take({ project_id: caller.project_id, quotas }, reply.raw)
    const giveBack = byCaller.take(name)
    if (giveBack) whenClosed(reply.raw, giveBack)
  }

  function update(batches: BatchObject[]): LiveUpdate {
    return { object: 'live', at: unixSeconds(clock.now()), batches }
  }

  function follow(
    request: FastifyRequest,
    stream: Readable,
    project_id: string,
    seen: readonly BatchObject[],
  ): void {
    const behind = new Map<string, BatchObject>()
    let sentAt = clock.now()
    const leave = feed.watch(project_id, seen, (changed) => {
      void mayGoOn(request).then((may) => {
        if (!may) stream.push(null)
      })
      for (const batch of changed) behind.set(batch.id, batch)
      if (stream.readableEnded || stream.readableLength > BEHIND_BYTES) return
      const isQuiet = behind.size === 0
      if (isQuiet && clock.now() - sentAt < KEEP_ALIVE_MS) return
      stream.push(isQuiet ? ': still here\n\n' : eventOf(update([...behind.values()])))
      behind.clear()
      sentAt = clock.now()
    })
    open.add(stream)
    stream.once('close', () => {
      leave()
      open.delete(stream)
    })
  }

  /** Whether its key or its session is still valid; asked at each look, for a stream may last for days. */
  async function mayGoOn({ headers }: FastifyRequest): Promise<boolean> {
    const session = headers.authorization === undefined ? consoleTokenOf(headers.cookie) : null
    try {
      if (session === null) await authenticate(store.read, region, headers.authorization)
      else await authenticateSession(store.read, session, clock.now())
      return true
    } catch (error) {
      // A database that does not answer just now says nothing of the key.
      return !(error instanceof ApiError)
    }
  }
}

function eventOf(update: LiveUpdate): string {
  return `event: update\ndata: ${JSON.stringify(update)}\n\n`
}
