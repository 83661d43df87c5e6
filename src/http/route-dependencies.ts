// The dependencies of all endpoints. Each endpoint picks the ones that it needs.
import type { Registry } from 'prom-client'
import type { LineRecordText } from '../audit/read-line-record.ts'
import type { SealedBlobs } from '../blobs/sealed.ts'
import type { KeyBox } from '../blobs/wrap-key.ts'
import type { Clock } from '../domain/clock.ts'
import type { Model } from '../domain/model.ts'
import type { Plan } from '../domain/plan.ts'
import type { IncomingMemory } from '../intake/incoming.ts'
import type { StreamingValidation } from '../intake/streaming-validation.ts'
import type { Store } from '../store/store.ts'
import type { ServiceStatus } from '../wire/status.ts'

export interface RouteDependencies {
  store: Store
  sealed: SealedBlobs
  clock: Clock
  region: string
  /** Whether the database and the blob store answer; asked by operators. */
  storeHealth: () => Promise<NonNullable<ServiceStatus['service']>['stores']>
  /** The configuration in force, without its secrets. */
  settings: () => Record<string, unknown>
  /** Of the service. */
  version: string
  /** Prepares the console soon after the start, and not only when its first page is asked for. */
  prepareConsole?: boolean
  plans: ReadonlyMap<string, Plan>
  models: ReadonlyMap<string, Model>
  file_bytes_max: number
  /** What content may take while it is received, where a folder's needs do not fit. */
  incomingMemory?: IncomingMemory | undefined
  /** Validates large uploads while they arrive. Without it they are validated once they are stored. */
  streamingValidation?: StreamingValidation
  /** How long creating a batch waits for a file that is being validated. */
  wait_for_file_ms: number
  webhooks: {
    /** Whether a receiver may be in a private network and use plain HTTP. */
    allow_private_networks: boolean
    /** Encrypts the signing secrets. */
    keys: KeyBox
  }
  /** Of upstreams that tell by webhook of batches that have ended. */
  batchApiSecrets: () => readonly { upstream: string; secret: string }[]
  /** Called after background work was queued, so that workers in this process claim it at once. */
  wake: () => void
  /** The audit record of one line; undefined if the project has no such batch or line. `names`: null for operators. */
  readLineRecord: (
    project_id: string,
    batch_id: string,
    line: number,
    names: ReadonlyMap<string, Model> | null,
  ) => Promise<LineRecordText | undefined>
  /** Whether the service can do its work, for /readyz. */
  ready: () => Promise<boolean>
  /** Since when no worker has run (Unix ms); null if that is less than a minute. */
  noWorkerSince?: () => number | null
  /** Counts calls; shown at /metrics. */
  metrics?: Registry
  /** The metrics are shown on another port instead. */
  metrics_elsewhere?: boolean
}
