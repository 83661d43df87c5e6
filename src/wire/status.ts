// The shape of GET /v1/status: what waits and why; for operators also workers, model servers and stores.
import { type Static, Type } from 'typebox'
import { BATCH_STATUSES, type BatchStatus } from '../domain/batch.ts'
import { BatchObject, WaitingTextShape } from './batch.ts'
import { timestamp } from './list.ts'

const Count = Type.Integer({ minimum: 0 })
const NumberOrNull = Type.Union([Type.Number(), Type.Null()])
const TextOrNull = Type.Union([Type.String(), Type.Null()])

const UpstreamStatus = Type.Object(
  {
    model: Type.String(),
    upstream: Type.String(),
    in_flight: Count,
    concurrency: Type.Integer({
      minimum: 0,
      description: 'How many lines it gets at once, as found by itself.',
    }),
    concurrency_max: Count,
    circuit: Type.Enum(['closed', 'open']),
    lines_per_s: Type.Number({ minimum: 0, description: 'Answered, of late.' }),
    latency_ms: Type.Union([Type.Number({ minimum: 0 }), Type.Null()], {
      description: 'The mean of late; null when nothing was answered.',
    }),
    errors_per_s: Type.Number({
      minimum: 0,
      description: 'Attempts that failed or were throttled, of late.',
    }),
    reachable: Type.Optional(
      Type.Union([Type.Boolean(), Type.Null()], {
        description:
          'Whether it is up, by the lines that it answered; without lines, by its list of models, which it is asked ' +
          'for every half minute. Null: not known.',
      }),
    ),
    last_error: TextOrNull,
    tier: Type.Optional(
      Type.Integer({ minimum: 0, description: 'Lines go to the lowest tier that can take them.' }),
    ),
    hours: Type.Optional(
      Type.Union(
        [
          Type.Object({
            places: Type.Integer({
              minimum: 0,
              description: 'The most lines that its hours allow just now; 0: it is closed.',
            }),
            until: Type.Union([timestamp('when that changes.'), Type.Null()]),
          }),
          Type.Null(),
        ],
        { description: 'Null where it has no `hours`.' },
      ),
    ),
    live: Type.Optional(
      Type.Object(
        {
          share: Count,
          running: NumberOrNull,
          waiting: NumberOrNull,
          cache: NumberOrNull,
        },
        {
          description:
            'Of a server that answers other requests too: how many lines it may have now, and what it says of ' +
            'itself. Null: it does not say.',
        },
      ),
    ),
  },
  { title: 'UpstreamStatus' },
)

const WorkerStatus = Type.Object(
  {
    id: Type.String(),
    started: timestamp('when its session began.'),
    reported_at: Type.Union([Type.Integer({ minimum: 0 }), Type.Null()]),
    open_chunks: Count,
    stores_failing: Type.Boolean(),
    upstreams: Type.Array(UpstreamStatus),
  },
  { title: 'WorkerStatus' },
)

export const ServiceStatus = Type.Object(
  {
    object: Type.Literal('status'),
    at: timestamp('when it was read.'),
    version: Type.String(),
    region: Type.String(),
    workers_alive: Type.Boolean({ description: 'Whether any worker runs.' }),
    batches: Type.Array(
      Type.Object({
        status: Type.Unsafe<BatchStatus>({ type: 'string', enum: [...BATCH_STATUSES] }),
        count: Count,
      }),
      { description: 'Unfinished batches of the project.' },
    ),
    waiting: Type.Array(
      Type.Object({
        code: Type.String(),
        message: Type.String(),
        text: Type.Optional(WaitingTextShape),
        model: Type.Optional(Type.String()),
        batches: Type.Integer({ minimum: 1, description: 'How many batches of the project wait for this.' }),
        example: Type.String({ description: 'The ID of one of them.' }),
      }),
      { description: 'What unfinished batches of the project wait for.' },
    ),
    service: Type.Optional(
      Type.Object(
        {
          workers: Type.Array(WorkerStatus),
          models: Type.Array(
            Type.Object({
              model: Type.String(),
              state: Type.String(),
              since: timestamp('since when.'),
              error: TextOrNull,
            }),
            { description: 'Models that are unavailable, throttled or failing.' },
          ),
          stores: Type.Array(
            Type.Object({
              name: Type.Enum(['database', 'blobs']),
              kind: Type.String({ description: '`sqlite`, `postgres`, `disk` or `s3`.' }),
              ok: Type.Boolean(),
              latency_ms: NumberOrNull,
              error: TextOrNull,
            }),
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
  },
  { title: 'ServiceStatus' },
)

export type ServiceStatus = Static<typeof ServiceStatus>
export type WorkerStatus = Static<typeof WorkerStatus>
export type UpstreamStatus = Static<typeof UpstreamStatus>

// The configuration in force, as operators see it.

export const Settings = Type.Object(
  {
    object: Type.Literal('settings'),
    version: Type.String(),
    configuration: Type.Record(Type.String(), Type.Unknown(), {
      description: 'As it is in force, defaults included; secrets are shown as `"(hidden)"`.',
    }),
  },
  { title: 'Settings' },
)

export type Settings = Static<typeof Settings>

// What has changed, pushed: each event of GET /v1/live is one of these; without an event stream it is one snapshot.

export const LiveUpdate = Type.Object(
  {
    object: Type.Literal('live'),
    at: timestamp('when it was read.'),
    batches: Type.Array(BatchObject, {
      description:
        'The first time the unfinished batches, newest first; then those that have changed, ended or come since.',
    }),
  },
  { title: 'LiveUpdate' },
)

export type LiveUpdate = Static<typeof LiveUpdate>
