// A model as the configuration declares it and the API shows it.
import type { EndpointPath } from './endpoint.ts'
import type { OpeningHours } from './hours.ts'
import type { Price } from './money.ts'
import type { PromptStatistics } from './tokens.ts'

/** When the upstreams of a model are open; null stands for one that always is. */
export interface ModelHours {
  /** The hours of the upstreams of the lowest tier. */
  usual: readonly (OpeningHours | null)[]
  /** The hours of the upstreams that may also answer lines of at-risk batches. */
  atRisk: readonly (OpeningHours | null)[]
}

export interface Model {
  id: string
  /** Tokens of input and output together; null when unknown: then only the server can reject a line. */
  context_window: number | null
  /** The projected output of a line that sets no max_tokens; null when unknown. */
  max_output_tokens: number | null
  /** The price that the API shows, and that lines cost at upstreams without a price of their own. */
  price: Price
  /** The price that lines are projected at, of the dearest upstream that may answer; absent where `price` is that. */
  dearest?: Price | undefined
  /** Sums that its servers have reported about prompts; absent before the first report. */
  seen?: PromptStatistics | undefined
  /** False when the configuration gives no price: the model costs 0. */
  priced: boolean
  supports: { structured_output: boolean; tools: boolean }
  /** Lines for any other endpoint fail. */
  endpoints: readonly EndpointPath[]
  /** Absent where an upstream of the lowest tier is always open. */
  hours?: ModelHours | undefined
  /** The names of its servers that an operator gave; a name that is made of an address is not among them. */
  servers?: readonly string[] | undefined
  /** Unix seconds; when this model was first configured (the start of the process that reads it). */
  created: number
}

/** The price by which lines of the model are projected. */
export function projectedPrice({ dearest, price }: Pick<Model, 'dearest' | 'price'>): Price {
  return dearest ?? price
}

/** The end of a name that marks one of several replicas. */
const REPLICA = /@[^@]*$/

/** The name of a server for callers; null if it shows an address, or is not configured. */
export function serverNameOf(upstream: string, models: ReadonlyMap<string, Model>): string | null {
  const name = upstream.replace(REPLICA, '')
  const isGiven = (given: string): boolean =>
    [...models.values()].some(({ servers }) => servers?.includes(given))
  return isGiven(upstream) ? upstream : isGiven(name) ? name : null
}

/**
 * The types of upstreams. `kind`: a `server` answers lines and lists its models, a `batch-api` takes lines as batches of its
 * own. `only`: it answers no other endpoint. Their keys are in config/schema.ts, their adapters in compose/upstreams.ts.
 */
const UPSTREAM_TYPES = {
  sim: { kind: 'simulator', only: null },
  openai: { kind: 'server', only: null },
  'openai-batch': { kind: 'batch-api', only: null },
  'anthropic-batch': { kind: 'batch-api', only: '/v1/messages' },
} as const satisfies Record<string, { kind: string; only: EndpointPath | null }>

type Types = typeof UPSTREAM_TYPES
export type UpstreamType = keyof Types
type Kind = Types[UpstreamType]['kind']

/** The types of a kind. */
export type TypeOf<K extends Kind> = {
  [Type in UpstreamType]: Types[Type]['kind'] extends K ? Type : never
}[UpstreamType]

export function isOfKind<Upstream extends { type: UpstreamType }, K extends Kind>(
  upstream: Upstream,
  kind: K,
): upstream is Extract<Upstream, { type: TypeOf<K> }> {
  return UPSTREAM_TYPES[upstream.type].kind === kind
}

/** The only endpoint that one of these upstreams answers, and its type; undefined: they answer any. */
export function onlyEndpoint(
  upstreams: readonly { type: UpstreamType }[],
): { path: EndpointPath; type: UpstreamType } | undefined {
  for (const { type } of upstreams) {
    const { only } = UPSTREAM_TYPES[type]
    if (only !== null) return { path: only, type }
  }
  return undefined
}
