// Describes the answer of GET /v1/status: what waits and why; for operators also workers, model servers and stores.
import { type Static, Type } from 'typebox'
import { BATCH_STATUSES } from '../domain/batch.ts'
import { BatchObject } from './batch.ts'
import { WaitingTextShape } from './request-record.ts'
import { amount, arrayOf, count, flag, maybe, object, oneOf, orNull, text, timestamp } from './shape.ts'

const Count = count()
const NumberOrNull = orNull(Type.Number())
const TextOrNull = orNull(Type.String())

const UpstreamStatus = object('UpstreamStatus', {
  model: Type.String(),
  upstream: Type.String(),
  in_flight: Count,
  concurrency: count('How many lines it gets at once, as found by itself.'),
  concurrency_max: Count,
  circuit: Type.Enum(['closed', 'open']),
  lines_per_s: amount('Answered, of late.'),
  latency_ms: orNull(amount(), 'The mean of late; null when nothing was answered.'),
  errors_per_s: amount('Attempts that failed or were throttled, of late.'),
  reachable: maybe(
    Type.Boolean(),
    'Whether it is up, by the lines that it answered; without lines, by its list of models, which it is asked ' +
      'for every half minute. Null: not known.',
  ),
  last_error: TextOrNull,
  tier: Type.Optional(count('Lines go to the lowest tier that can take them.')),
  hours: maybe(
    Type.Object({
      places: count('The most lines that its hours allow just now; 0: it is closed.'),
      until: orNull(timestamp('when that changes.')),
    }),
    'Null where it has no `hours`.',
  ),
  live: Type.Optional(
    Type.Object(
      { share: Count, running: NumberOrNull, waiting: NumberOrNull, cache: NumberOrNull },
      {
        description:
          'Of a server that answers other requests too: how many lines it may have now, and what it says of ' +
          'itself. Null: it does not say.',
      },
    ),
  ),
})

const WorkerStatus = object('WorkerStatus', {
  id: Type.String(),
  started: timestamp('when its session began.'),
  reported_at: orNull(count()),
  open_chunks: Count,
  stores_failing: Type.Boolean(),
  upstreams: Type.Array(UpstreamStatus),
})

export const ServiceStatus = object('ServiceStatus', {
  object: Type.Literal('status'),
  at: timestamp('when it was read.'),
  version: Type.String(),
  region: Type.String(),
  workers_alive: flag('Whether any worker runs.'),
  batches: arrayOf(
    Type.Object({ status: oneOf(BATCH_STATUSES), count: Count }),
    'Unfinished batches of the project.',
  ),
  waiting: arrayOf(
    Type.Object({
      code: Type.String(),
      message: Type.String(),
      text: Type.Optional(WaitingTextShape),
      model: Type.Optional(Type.String()),
      batches: Type.Integer({ minimum: 1, description: 'How many batches of the project wait for this.' }),
      example: text('The ID of one of them.'),
    }),
    'What unfinished batches of the project wait for.',
  ),
  service: Type.Optional(
    Type.Object(
      {
        workers: Type.Array(WorkerStatus),
        models: arrayOf(
          Type.Object({
            model: Type.String(),
            state: Type.String(),
            since: timestamp('since when.'),
            error: TextOrNull,
          }),
          'Models that are unavailable, throttled or failing.',
        ),
        stores: Type.Array(
          Type.Object({
            name: Type.Enum(['database', 'blobs']),
            kind: text('As the configuration names it, such as `sqlite` or `s3`.'),
            ok: Type.Boolean(),
            latency_ms: NumberOrNull,
            error: TextOrNull,
          }),
        ),
        history: Type.Optional(
          arrayOf(
            Type.Object({
              model: Type.String(),
              upstream: Type.String(),
              at: timestamp('when the hour begins.'),
              answered: count('Attempts that were answered.'),
              missed: count('Attempts that failed or were throttled.'),
              latency_ms: orNull(amount(), 'The mean of those that were answered.'),
              concurrency: amount('How many attempts ran at once, as the mean of the hour.'),
            }),
            'With `history=true`: by model server and hour of the last day, all but hours without attempts.',
          ),
        ),
        queue: Type.Object({
          batches: Type.Array(Type.Object({ status: Type.String(), count: Count })),
          chunks: Type.Object({ ready: Count, leased: Count, parked: Count }),
          tasks_due: Type.Array(Type.Object({ kind: Type.String(), count: Count })),
          blobs_pending_deletion: Count,
        }),
      },
      { description: 'Of the whole service; with the scope `operator` only.' },
    ),
  ),
})

export type ServiceStatus = Static<typeof ServiceStatus>
export type WorkerStatus = Static<typeof WorkerStatus>
export type UpstreamStatus = Static<typeof UpstreamStatus>

// The need that open batches have of model servers, for autoscalers.

export const ModelDemand = object(
  'ModelDemand',
  {
    object: Type.Literal('demand'),
    model: Type.String(),
    lines: count('Unfinished lines of batches that may send now: not paused, and past their `start_after`.'),
    tokens: count('Their projected tokens: prompts, and all the output that they allow.'),
    tokens_per_s: amount('The rate that meets the deadline of each of them.'),
    tokens_per_s_next_hour: amount(
      'The rate that is needed at some time of the next hour: with the batches whose `start_after` is in it.',
    ),
    tokens_per_s_next_day: amount('The same of the next 24 hours.'),
    answered_tokens_per_s: amount(
      'The rate that its servers have now, by the same measure: the lines that they answer, at the mean of the projected tokens that wait. 0 where nothing waits.',
    ),
    replicas: Type.Optional(
      count('Servers of the rate in the query that this needs: none without lines, else one at least.'),
    ),
    by_deadline: arrayOf(
      Type.Object({
        deadline: timestamp('the first deadline in that hour.'),
        lines: count(),
        tokens: count(),
      }),
      'By the hour in which windows end, the next one first.',
    ),
  },
  {
    object: 'demand',
    model: 'sim-1',
    lines: 1200,
    tokens: 360000,
    tokens_per_s: 50,
    tokens_per_s_next_hour: 50,
    tokens_per_s_next_day: 80,
    answered_tokens_per_s: 62.5,
    replicas: 1,
    by_deadline: [{ deadline: 1767232800, lines: 1200, tokens: 360000 }],
  },
)
export const Demand = object('Demand', {
  object: Type.Literal('list'),
  data: arrayOf(ModelDemand, 'Every model of the configuration, with or without lines.'),
})
export type Demand = Static<typeof Demand>

// The configuration in force, as operators see it.

export const Settings = object('Settings', {
  object: Type.Literal('settings'),
  version: Type.String(),
  configuration: Type.Record(Type.String(), Type.Unknown(), {
    description: 'As it is in force, defaults included; secrets are shown as `"(hidden)"`.',
  }),
})

export type Settings = Static<typeof Settings>

// The changes that are pushed: each event of GET /v1/live is one of these; without an event stream it is one snapshot.

export const LiveUpdate = object('LiveUpdate', {
  object: Type.Literal('live'),
  at: timestamp('when it was read.'),
  batches: arrayOf(
    BatchObject,
    'The first time the unfinished batches, newest first; then those that have changed, ended or come since.',
  ),
  versions: Type.Record(Type.String(), Type.String(), {
    description:
      'What else has changed lately, by the name in its path, such as `limits` or `webhooks`, and `servers`, `events` and `deliveries`: a text that differs from the last one means that it is worth reading again.',
  }),
})

export type LiveUpdate = Static<typeof LiveUpdate>
