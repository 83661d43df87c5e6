// What one simulated run is made of, as its parts and the invariant checks see it.
import type { SealedBlobs } from '../../src/blobs/sealed.ts'
import type { DeclaredEndpoint, EndpointPath } from '../../src/domain/endpoint.ts'
import type { Model } from '../../src/domain/model.ts'
import type { Price } from '../../src/domain/money.ts'
import { type Plan, QUOTAS_DEFAULT } from '../../src/domain/plan.ts'
import type { Store } from '../../src/store/store.ts'
import type { Caps } from './caps.ts'
import type { InvariantChecker } from './invariant-checker.ts'
import type { memoryBlobs } from './memory-blobs.ts'
import type { ModelServer } from './model-server.ts'
import type { Plans } from './plans.ts'
import type { Servers } from './servers.ts'
import type { Tally } from './tally.ts'

const DECLARED = { prompt: ['input'], answer: 'summary' }

/** Those that the configuration declares, one for each unit; what they project for input is more than servers count. */
export const DECLARED_ENDPOINTS: readonly DeclaredEndpoint[] = [
  {
    ...{ path: '/v1/summarize', ...DECLARED },
    usage: { input: 'read', output: 'written' },
    ...{ unit: 'tokens', limit: 'max_tokens', input_projected: 20 },
  },
  {
    ...{ path: '/v1/transcribe', ...DECLARED },
    usage: { input: 'seconds', output: null },
    ...{ unit: 'seconds', limit: null, input_projected: 100 },
  },
  {
    ...{ path: '/v1/classify', ...DECLARED },
    usage: { input: null, output: null },
    ...{ unit: 'requests', limit: null, input_projected: null },
  },
]

/** Of batches; most of them are chats. */
export const SIM_ENDPOINTS: readonly EndpointPath[] = [
  '/v1/chat/completions',
  '/v1/messages',
  ...DECLARED_ENDPOINTS.map(({ path }) => path),
]

export const SIM_MODEL: Model = {
  id: 'm',
  context_window: null,
  max_output_tokens: 100,
  price: { input_picos: 1_000_000, output_picos: 10_000_000 },
  priced: true,
  supports: { structured_output: true, tools: true },
  endpoints: SIM_ENDPOINTS,
  created: 0,
}

/** So many times what SIM_MODEL costs. */
export function priceOf(factor: number): Price {
  const { input_picos, output_picos } = SIM_MODEL.price
  return { input_picos: factor * input_picos, output_picos: factor * output_picos }
}

/** Two models of one price. */
export const SIM_MODELS: readonly Model[] = [SIM_MODEL, { ...SIM_MODEL, id: 'n' }]

export const SIM_PLAN: Plan = {
  name: 'payg',
  completion_windows: [{ text: '24h', ms: 86_400_000 }],
  file_retention_ms: 90 * 86_400_000,
  retention: null,
  live_price_share: null,
  quotas: QUOTAS_DEFAULT,
}

/** Frames that are compressed at once: the thread pool takes its own time. */
export const SEALING = { frame_bytes: 16 * 1024 }

export const RULES = { file_retention_ms: () => SIM_PLAN.file_retention_ms }

/** The lines of a group of chunks that are cut along beginnings: batches of a run have a few dozen lines. */
export const GROUP_LINES_MIN = 6

export interface SimulatedRun {
  store: Store
  sealed: SealedBlobs
  blobs: ReturnType<typeof memoryBlobs>
  plans: Plans
  server: ModelServer
  servers: Servers
  checker: InvariantChecker
  caps: Caps
  tally: Tally
  now: () => number
  /** The events of the run, to investigate a failing seed. */
  trace: string[]
}
