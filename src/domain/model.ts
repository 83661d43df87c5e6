// A model as the configuration declares it and the API shows it.
import type { EndpointPath } from './endpoint.ts'
import type { OpeningHours } from './hours.ts'
import type { Price } from './money.ts'
import type { PromptStatistics } from './tokens.ts'

/** The opening hours of a model's upstreams; null stands for an upstream that is always open. */
export interface ModelHours {
  /** The hours of the upstreams of the lowest tier. */
  usual: readonly (OpeningHours | null)[]
  /** The hours of the upstreams that may also answer lines of at-risk batches. */
  atRisk: readonly (OpeningHours | null)[]
}

export interface Model {
  id: string
  /** The limit of input and output tokens together; null if unknown: then only the server can reject a line. */
  context_window: number | null
  /** The projected output tokens of a line without max_tokens; null if unknown. */
  max_output_tokens: number | null
  /** The price in the API, and of lines at upstreams without a price of their own. */
  price: Price
  /** The projected price, that of the dearest upstream that may answer; absent if it equals `price`. */
  dearest?: Price | undefined
  /** Sums of prompts and their tokens as the model's servers reported them; absent before the first report. */
  seen?: PromptStatistics | undefined
  /** Whether the configuration gives a price; without one the model costs 0. */
  priced: boolean
  supports: { structured_output: boolean; tools: boolean }
  /** The endpoints of the model's lines; lines for others fail. */
  endpoints: readonly EndpointPath[]
  /** The opening hours; absent if an upstream of the lowest tier is always open. */
  hours?: ModelHours | undefined
  /** The names that an operator gave to the model's servers; a name made from an address is not included. */
  servers?: readonly string[] | undefined
  /** The time when this model was first configured, Unix seconds (the start of the process that reads it). */
  created: number
}

export function projectedPrice({ dearest, price }: Pick<Model, 'dearest' | 'price'>): Price {
  return dearest ?? price
}

/** The suffix of a name that marks one of several replicas. */
const REPLICA = /@[^@]*$/

/** The name of a server for callers; null if it shows an address, or is not configured. */
export function serverNameOf(upstream: string, models: ReadonlyMap<string, Model>): string | null {
  const name = upstream.replace(REPLICA, '')
  const isGiven = (given: string): boolean =>
    [...models.values()].some(({ servers }) => servers?.includes(given))
  return isGiven(upstream) ? upstream : isGiven(name) ? name : null
}

/**
 * The types of upstreams. `kind`: a `server` answers lines and lists its models, a `batch-api` takes lines as batches.
 * `only`: the only endpoint that it answers. Keys are in config/schema.ts, adapters in compose/upstreams.ts.
 */
export const UPSTREAM_TYPES = {
  sim: { kind: 'simulator', only: null },
  openai: { kind: 'server', only: null },
  'openai-batch': { kind: 'batch-api', only: null },
  'anthropic-batch': { kind: 'batch-api', only: '/v1/messages' },
} as const satisfies Record<string, { kind: string; only: EndpointPath | null }>

type Types = typeof UPSTREAM_TYPES
export type UpstreamType = keyof Types
type Kind = Types[UpstreamType]['kind']

export type TypeOf<K extends Kind> = {
  [Type in UpstreamType]: Types[Type]['kind'] extends K ? Type : never
}[UpstreamType]

export function isOfKind<Upstream extends { type: UpstreamType }, K extends Kind>(
  upstream: Upstream,
  kind: K,
): upstream is Extract<Upstream, { type: TypeOf<K> }> {
  return UPSTREAM_TYPES[upstream.type].kind === kind
}

/** The only endpoint of an upstream of one of these types, and that type; undefined if one answers any endpoint. */
export function onlyEndpoint(
  upstreams: readonly { type: UpstreamType }[],
): { path: EndpointPath; type: UpstreamType } | undefined {
  for (const { type } of upstreams) {
    const { only } = UPSTREAM_TYPES[type]
    if (only !== null) return { path: only, type }
  }
  return undefined
}
