// Runs lines in one worker without claims and commits: they are placed, sent and ended, before a scripted model server
// or upstreams of the test. The chunks of one batch are leased. The changes of a turn of the event loop are handled as
// in the worker; time passes only when the test moves the clock.
import { ResponseMemory } from '../../src/backends/response-memory.ts'
import { ReservedFunds } from '../../src/dispatch/gates/limits/reserved-funds.ts'
import type { RetryPolicy } from '../../src/dispatch/gates/retries.ts'
import { PAUSED } from '../../src/dispatch/line-state.ts'
import { Lines, type LinesOptions } from '../../src/dispatch/lines.ts'
import type { Run } from '../../src/dispatch/run.ts'
import { Lane } from '../../src/dispatch/senders/lane.ts'
import { NO_SPILL, Route, type Spill } from '../../src/dispatch/senders/routes.ts'
import { Sender } from '../../src/dispatch/senders/sender.ts'
import { type Change, Turn } from '../../src/dispatch/turn.ts'
import type { Clock } from '../../src/domain/clock.ts'
import { ModelServer, type Upstream } from '../../src/servers/upstream.ts'
import { answerChecks } from '../fakes/answer-checks.ts'
import { scriptedBackend } from '../fakes/scripted-backend.ts'
import { type BatchSize, queuedBatch, RETRY } from './queued-batch.ts'

export interface LineWorldOptions extends Omit<BatchSize, 'chunks'> {
  chunks?: number
  /** Of the scripted server. */
  concurrency?: number
  retry?: Partial<RetryPolicy>
  /** Beside the scripted server, or instead of it. */
  upstreams?: (server: ModelServer) => Upstream[]
  spill?: Spill
  earlier?: LinesOptions['earlier']
  /** Of the worker; 64 MiB unless told. */
  answers?: ResponseMemory
}

/** What is known of a line that has ended: its result line and its audit record. */
export interface EndedLine {
  line: number
  /** `ok` or that of its error. */
  code: string
  result: { error: { code: string; message: string } | null }
  record: {
    cost_usd: number
    usage: { total_tokens: number } | null
    usage_estimated?: boolean
    attempts: unknown[]
    shared_from?: unknown
  }
}

export async function lineWorld(options: LineWorldOptions) {
  const { chunks = 1, lines, dedupe, reask, content } = options
  const queued = await queuedBatch({ chunks, lines, dedupe, reask, content })
  return linesIn(queued, await queued.open(), options)
}

/** The same with a batch and runs of its chunks that are there. */
export function linesIn(
  queued: Awaited<ReturnType<typeof queuedBatch>>,
  runs: readonly Run[],
  options: Omit<LineWorldOptions, keyof BatchSize>,
) {
  const { concurrency = 8, retry = {}, spill = NO_SPILL } = options
  const { answers = new ResponseMemory(64 * 1024 * 1024) } = options
  const { models, batch } = queued
  const clock: Clock = { ...queued.clock, now: () => queued.clock.now() + world.skewMs }
  const server = scriptedBackend()
  const modelServer = new ModelServer({
    backend: server.backend,
    concurrency_max: concurrency,
    modelAlias: null,
  })
  const upstreams = options.upstreams?.(modelServer) ?? [modelServer]
  const turn = new Turn(clock)
  const lane = new Lane('m', new Route(upstreams, spill), clock, turn)
  const lanes = new Map([['m', lane]])
  const funds = new ReservedFunds(turn)
  const world = {
    ...queued,
    clock,
    advance: queued.clock.advance,
    /** By how much the worker's clock was set. */
    skewMs: 0,
    runs,
    run: runs[0] as Run,
    server,
    modelServer,
    lane,
    lanes,
    turn,
    funds,
    logged: [] as { level: string; fields: object; text: string }[],
    paused: false,
    maySend: true,
    failingSince: null as number | null,
    checks: 0,
    /** What the lines have found out, but for what is taken as in a worker. */
    changes: [] as Change[],
    /** Called at the end of each turn, before lines are sent. */
    beforeSending: (): void => {},
    /** The end of each line, in the order in which they ended. */
    outcomes: [] as EndedLine[],
    get broken(): Run[] {
      return world.changes.flatMap((one) =>
        one.kind === 'stopped' && one.reason === 'broken' ? [one.run] : [],
      )
    },
    get ended(): string[] {
      return world.outcomes.map(({ line, code }) => `l${line} ${code}`)
    },
    inFlight: (content: string) => server.inFlight.find((one) => one.content === content)!,
    /** Opens a run. */
    async start(run: Run = runs[0]!): Promise<void> {
      lines.parked.restore(run)
      funds.open(run)
      lines.open(run)
      await world.settled()
    },
    /** What is under way has ended, without time passing. */
    settled: () => queued.clock.advance(0),
    batch,
  }
  const log = (level: string) => (fields: object, text: string) =>
    void world.logged.push({ level, fields, text })
  const logs = { info: log('info'), warn: log('warn'), error: log('error') }
  const lines = new Lines({
    ...{ clock, models, lanes, turn, funds, answers },
    random: () => 0.5,
    log: logs,
    retry: { ...RETRY, ...retry },
    pauses: { state: PAUSED, until: () => (world.paused ? Number.POSITIVE_INFINITY : null) },
    earlier: options.earlier,
    checks: answerChecks(clock),
  })
  const sender = new Sender({
    ...{ clock, lanes, lines, turn },
    log: logs,
    answers: {
      get hasRoom() {
        return world.maySend
      },
    },
    session: { isCertain: true },
    recorder: {
      get failingSince() {
        return world.failingSince
      },
    },
  })
  const seen = new Map<Run, number>()
  turn.begin({
    apply(change) {
      if (change.kind === 'freed') lines.place(change.run, change.position, change.cause)
      else if (change.kind === 'examined') lines.examined(change)
      else if (change.kind === 'stopped' && change.reason === 'batch_expired')
        lines.stop(change.run, change.reason, true)
      else world.changes.push(change)
    },
    end({ runs: touched, checksLimits }) {
      for (const run of touched) {
        const { positions } = run.results.fresh
        for (const position of positions.slice(seen.get(run) ?? 0)) world.outcomes.push(endOf(run, position))
        seen.set(run, positions.length)
      }
      if (checksLimits) world.checks++
      world.beforeSending()
      sender.pump()
    },
  })
  return Object.assign(world, { lines, sender })
}

function endOf(run: Run, position: number): EndedLine {
  const read = (field: 'result' | 'audit') => JSON.parse(String(run.results.fieldOf(position, field)))
  const result = read('result')
  return { line: run.lines[position]!.line, code: result.error?.code ?? 'ok', result, record: read('audit') }
}
