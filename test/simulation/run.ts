// What one simulated run is made of, as the invariant checks see it.
import type { SealedBlobs } from '../../src/blobs/sealed.ts'
import type { Model } from '../../src/domain/model.ts'
import type { Store } from '../../src/store/store.ts'
import type { Caps } from './caps.ts'
import type { InvariantChecker } from './invariant-checker.ts'
import type { memoryBlobs } from './memory-blobs.ts'
import type { ModelServer } from './model-server.ts'
import type { Tally } from './tally.ts'

export const SIM_MODEL: Model = {
  id: 'm',
  context_window: null,
  max_output_tokens: 100,
  price: { input_picos: 1_000_000, output_picos: 10_000_000 },
  priced: true,
  supports: { structured_output: true, tools: true },
  endpoints: ['/v1/chat/completions'],
  created: 0,
}

/** Two models of one price; the lines of one chunk name either. */
export const SIM_MODELS: readonly Model[] = [SIM_MODEL, { ...SIM_MODEL, id: 'n' }]

export interface PlannedBatch {
  id: string
  name: string
  project_id: string
  /** The texts of the lines in order; each is also the custom_id. */
  lines: string[]
  expires_at: number
  /** Its result lines, read before its files were deleted; null while the files exist. */
  read: { outputs: string[]; errors: string[] } | null
}

export interface SimulatedRun {
  store: Store
  sealed: SealedBlobs
  blobs: ReturnType<typeof memoryBlobs>
  batches: PlannedBatch[]
  server: ModelServer
  checker: InvariantChecker
  caps: Caps
  tally: Tally
  /** The events of the run, to investigate a failing seed. */
  trace: string[]
}
