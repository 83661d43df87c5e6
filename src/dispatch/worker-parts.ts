// Constructs the parts of a worker. A part calls the parts that are constructed before it; for the others it raises a
// WorkerEvent, which the worker passes on.
import type { ResponseMemory } from '../backends/response-memory.ts'
import type { SealedBlobs } from '../blobs/sealed.ts'
import type { Clock } from '../domain/clock.ts'
import type { Log } from '../domain/log.ts'
import type { Model } from '../domain/model.ts'
import type { Tracing } from '../domain/tracing.ts'
import type { FinishRules } from '../results/finish.ts'
import type { OpenChunk } from '../results/open-chunk.ts'
import type { Outcome } from '../results/outcome.ts'
import { Recorder } from '../results/recorder.ts'
import type { BatchRow, TaskRow } from '../store/schema.ts'
import type { Store } from '../store/store.ts'
import type { TaskHandler, TaskHandlers } from '../store/tasks.ts'
import { listLiveWorkers } from '../store/worker-reports.ts'
import { BatchStarts } from './batch-starts.ts'
import { BlockedChunks } from './claim/blocked-chunks.ts'
import { ChunkReader } from './claim/chunk-reader.ts'
import { Claimer } from './claim/claimer.ts'
import { Closer } from './claim/closer.ts'
import { LimitGate } from './limits/limit-gate.ts'
import { ReservedFunds } from './limits/reserved-funds.ts'
import type { Observer } from './observer.ts'
import { OpenChunks } from './open-chunks.ts'
import { Pauses } from './pauses.ts'
import { RemoteLines } from './remote/remote-lines.ts'
import { RemotePoller } from './remote/remote-poller.ts'
import { EarlierAnswers } from './send/earlier-answers.ts'
import { LaneReporter } from './send/lane-reporter.ts'
import { LiveTraffic } from './send/live-traffic.ts'
import { PromptLearner } from './send/prompt-learner.ts'
import type { RetryPolicy } from './send/retry-policy.ts'
import { Sender } from './send/sender.ts'
import type { Spill } from './send/tiers.ts'
import type { Upstream } from './send/upstream.ts'
import { Session } from './session.ts'
import { TaskRunner } from './task-runner.ts'
import { WorkerReporter } from './worker-reporter.ts'

export interface WorkerOptions {
  store: Store
  sealed: SealedBlobs
  clock: Clock
  /** For leases; the process's own by default. */
  steadyClock?: Pick<Clock, 'now'>
  log: Log
  random: () => number
  /** Changed in place when the worker learns how many bytes a token has. */
  models: Map<string, Model>
  upstreams: ReadonlyMap<string, readonly Upstream[]>
  /** By model, when lines spill over to higher tiers. */
  spills?: ReadonlyMap<string, Spill> | undefined
  retry: RetryPolicy
  rules: FinishRules
  leaseMs: number
  drainMs: number
  flushIntervalMs: number
  memoryBytes: number
  /** Limits the bytes of answers in memory; at most half of them stay once they are in journals. */
  answers: ResponseMemory
  /** How old an uncommitted blob may be when it is committed; the orphan sweep deletes older ones. */
  blobFreshMs: number
  tasks: TaskHandlers & { plan: TaskHandler }
  /** The maintenance tasks; every worker runs them about once a second. */
  maintenance: () => Promise<void>
  onEnded?: (batch: BatchRow) => void
  /** A task ended or was postponed. */
  onTask?: (task: TaskRow) => void
  /** For metrics. */
  observe?: Observer | undefined
  /** Without it, nothing is traced. */
  tracing?: Tracing | undefined
}

/** Events that parts raise, and questions that the worker answers. */
export interface WorkerEvents {
  /** The session expired; a new one is open. */
  sessionLost: () => void
  /** Sending may be possible again. */
  sendable: () => void
  /** The first line of a chunk was sent, and its batch was queued. */
  begun: (chunk: OpenChunk) => void
  lineEnded: (chunk: OpenChunk, outcome: Outcome) => void
  /** The reserved funds do not cover a line. */
  insufficientFunds: (chunk: OpenChunk) => void
  /** No line of a stopped chunk is in flight any more. */
  chunkIdle: (chunk: OpenChunk) => void
  chunkClosed: (chunk: OpenChunk, how: 'sealed' | 'parked' | 'lost') => void
  committed: () => void
  batchEnded: (batch: BatchRow) => void
  taskDone: (task: TaskRow) => void
  /** Reserves for a chunk that was claimed; see Claimer. */
  admit: (chunk: OpenChunk, limitVersion: number) => Promise<{ retryAt: number } | null>
  chunkOpened: (chunk: OpenChunk) => void
  atRisk: () => readonly string[]
}

export type WorkerParts = ReturnType<typeof makeWorkerParts>

export function makeWorkerParts(options: WorkerOptions, on: WorkerEvents) {
  const { store, sealed, clock, log, random, models, upstreams, rules, answers, observe } = options
  const open = new OpenChunks()
  const openChunks = (): Iterable<OpenChunk> => open
  const session = new Session({
    store,
    clock,
    steadyClock: options.steadyClock,
    log,
    leaseMs: options.leaseMs,
    onLost: on.sessionLost,
    onRenewed: on.sendable,
  })
  const sessionId = (): string => session.id

  const learner = new PromptLearner(store, models)
  const funds = new ReservedFunds()
  const pauses = new Pauses({
    store,
    sender: () => sender,
    park: (chunk) => void recorder.park(chunk, chunk.claim.deadline, 'paused'),
  })
  const workerReporter: WorkerReporter = new WorkerReporter({
    store,
    clock,
    sessionId,
    lanes: () => sender.lanes,
    status: () => ({ openChunks: open.size, storesFailing: recorder.failingSince !== null }),
  })
  const sender: Sender = new Sender({
    clock,
    random,
    log,
    models,
    upstreams,
    spills: options.spills,
    isPaused: (chunk, model) => pauses.covers(chunk, model),
    retry: options.retry,
    maySend: () => session.isCertain && answers.hasRoom,
    funds,
    onBegun: on.begun,
    onInsufficientFunds: on.insufficientFunds,
    onOutcome: on.lineEnded,
    onHandOver: (upstream, jobs) => remote.handOver(upstream, jobs),
    onIdle: on.chunkIdle,
    earlier: new EarlierAnswers({
      ...{ store, sealed, clock, log, sessionId },
      openChunk: (batch_id, idx) =>
        [...open].find(({ claim }) => claim.batch_id === batch_id && claim.idx === idx),
    }),
    observe: {
      attempted(upstream, result, durationMs) {
        workerReporter.attempted(upstream, result, durationMs)
        observe?.attempted(upstream, result, durationMs)
      },
      retried: (upstream) => observe?.retried(upstream),
    },
  })
  answers.onRoom = on.sendable
  const reporter = new LaneReporter({ store, clock, sessionId, lanes: () => sender.lanes })
  const liveTraffic = new LiveTraffic({
    clock,
    lanes: () => sender.lanes,
    async reports() {
      const workers = await listLiveWorkers(store.read, store.claimSql)
      return workers.flatMap(({ id, report }) => (id === session.id || report === null ? [] : [report]))
    },
  })
  const starts = new BatchStarts({ store, clock, log, isOpen: (chunk) => open.has(chunk) })

  const recorder: Recorder = new Recorder({
    store,
    sealed,
    clock,
    log,
    rules,
    flushIntervalMs: options.flushIntervalMs,
    answers,
    blobFreshMs: options.blobFreshMs,
    onClosed: on.chunkClosed,
    onSettled: (chunk, outcomes) => funds.committed(chunk, outcomes),
    onCommitted: on.committed,
    onRejected: (chunk) => sender.stop(chunk, 'lost', true),
    onEnded: on.batchEnded,
    observe,
  })
  const remote = new RemoteLines({
    store,
    clock,
    log,
    random,
    sender: () => sender,
    funds,
    answers,
    isCertain: () => session.isCertain,
    isPaused: (chunk, model) => pauses.covers(chunk, model),
    isOverLimit: (chunk) => gate.isOver(chunk),
    isOpen: (chunk) => open.has(chunk),
    outagePatienceMs: options.retry.outage_patience_ms,
    onBegun: on.begun,
    onInsufficientFunds: on.insufficientFunds,
    settle: (chunks) => recorder.settle(chunks),
    park: (chunk, runAt) => void recorder.park(chunk, runAt, 'remote_batch', null),
  })
  const poller: RemotePoller = new RemotePoller({
    store,
    clock,
    log,
    rows: remote.rows,
    hasBatchApi: () =>
      [...sender.lanes.values()].some((lane) => lane.upstreams.some(({ batches }) => batches !== null)),
    onReady: () => claimer.look(),
  })
  const gate = new LimitGate({
    store,
    clock,
    random,
    sender,
    funds,
    openChunks,
    settle: (chunks) => recorder.settle(chunks),
    park: (chunk, runAt) => void recorder.park(chunk, runAt, 'usage_limit'),
    onLost: (chunk) => {
      recorder.untrack(chunk)
      chunk.trace?.end(clock.now(), { 'offpeak.chunk.end': 'lost' })
      on.chunkClosed(chunk, 'lost')
    },
  })
  const blocked = new BlockedChunks({
    clock,
    random,
    sender,
    openChunks,
    park: (chunk, runAt, model) => void recorder.park(chunk, runAt, 'model_unavailable', model ?? undefined),
  })

  const reader = new ChunkReader({ store, sealed, clock, log, models })
  const claimer = new Claimer({
    store,
    reader,
    clock,
    log,
    memoryBytes: options.memoryBytes,
    sessionId,
    openChunks,
    demand: () => sender.demand(),
    atRisk: on.atRisk,
    paused: () => gate.pausedProjects(),
    admit: on.admit,
    onCrowded: () => blocked.park(),
    onOpened: on.chunkOpened,
    tracing: options.tracing,
  })
  const closer = new Closer({
    store,
    sealed,
    reader,
    clock,
    log,
    rules,
    sessionId,
    leased: () => claimer.leased(),
    plan: options.tasks.plan,
    onEnded: on.batchEnded,
    onPossibleStray: () => claimer.suspectStrays(),
    observe,
  })
  const tasks = new TaskRunner({
    store,
    clock,
    log,
    handlers: options.tasks,
    sessionId,
    onDone: on.taskDone,
  })
  return {
    open,
    session,
    learner,
    funds,
    sender,
    reporter,
    workerReporter,
    liveTraffic,
    blocked,
    starts,
    recorder,
    gate,
    pauses,
    remote,
    poller,
    claimer,
    closer,
    tasks,
  }
}
