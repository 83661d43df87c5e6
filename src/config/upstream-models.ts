// Makes the models of `offpeak serve --upstream URL`: each model that the server lists, with the defaults of an `openai`
// upstream and without a price.
import { ENDPOINT_PATHS, type EndpointPath } from '../domain/endpoint.ts'
import { isOfKind } from '../domain/model.ts'
import type { Config, EngineConfig, ModelConfig, ServerUpstream, UpstreamConfig } from './config.ts'
import { readModels } from './load.ts'
import { BASE_URL_EXPECTED, parseBaseUrl } from './schema.ts'
import { modelOf } from './settings.ts'
import { ConfigError, shown } from './sources.ts'

/** An entry in the list of models of a server. */
export interface ServedModel {
  id: string
  /** The endpoints of the model; null where the server does not name them. */
  endpoints: readonly EndpointPath[] | null
  context_window: number | null
  /** The ID of the base model of a LoRA adapter. */
  parent: string | null
  /** The ID of the model's weights: two IDs with the same root are names of one model. */
  root: string | null
}

/** The most models of one server that are used: each has connections, a queue and reports. */
export const SERVED_MODELS_MAX = 2_000

/** The list of a server's models, indexed by ID. */
class Listing {
  readonly #byId: ReadonlyMap<string, ServedModel>
  /** The adapters by the common key of their parent's names. */
  readonly #adapters: ReadonlyMap<string, readonly ServedModel[]>
  readonly #only: ServedModel | null

  constructor(listed: readonly ServedModel[]) {
    this.#byId = new Map(listed.toReversed().map((one) => [one.id, one]))
    this.#only = listed.length === 1 ? listed[0]! : null
    const adapters = listed.filter((one) => one.parent !== null)
    this.#adapters = Map.groupBy(adapters, ({ parent }) => this.#nameOf(parent ?? ''))
  }

  /** The common key of a model's names, which have the same root; an unlisted name has its own key. */
  #nameOf(id: string): string {
    const entry = this.#byId.get(id)
    return entry?.parent === null && entry.root !== null ? `root ${entry.root}` : `id ${id}`
  }

  /** The server's entry for a model; a server that lists one model alone may answer to any name. */
  entryOf(id: string): ServedModel | null {
    return this.#byId.get(id) ?? this.#only
  }

  /** The context window of a model; some servers give an adapter's window with its base model alone. */
  windowOf({ context_window, parent }: ServedModel): number | null {
    return context_window ?? this.#byId.get(parent ?? '')?.context_window ?? null
  }

  /** The adapters of a model, at most SERVED_MODELS_MAX. */
  adaptersOf(id: string): readonly ServedModel[] {
    return this.#adapters.get(this.#nameOf(id))?.slice(0, SERVED_MODELS_MAX) ?? []
  }
}

/** Normalizes the URL of `--upstream`; throws a ConfigError for an invalid one. */
export function upstreamBaseUrl(url: string): string {
  const base_url = parseBaseUrl(url)
  if (base_url === undefined) {
    throw new ConfigError([`--upstream: expected ${BASE_URL_EXPECTED}, found ${shown(url)}`])
  }
  return base_url
}

/**
 * Makes the models of a server. `listed`: its models, of which the first SERVED_MODELS_MAX are used; one without
 * endpoints may serve any. `created`: Unix seconds.
 */
export function upstreamModels(
  base_url: string,
  listed: readonly ServedModel[],
  access: Pick<ServerUpstream, 'api_key' | 'proxy'>,
  created: number,
): ModelConfig[] {
  const [written] = readModels([{ id: 'any', upstreams: [{ type: 'openai', base_url }] }])
  const { model, upstreams, ...terms } = modelOf(written!, {}, '', created)
  const listing = new Listing(listed)
  return listed.slice(0, SERVED_MODELS_MAX).map((entry) => ({
    ...terms,
    model: {
      ...model,
      id: entry.id,
      context_window: listing.windowOf(entry),
      endpoints: entry.endpoints ?? ENDPOINT_PATHS,
    },
    upstreams: upstreams.map((one) =>
      isOfKind(one, 'server') ? { ...one, ...access, model: entry.id } : one,
    ),
    endpoints_configured: true,
  }))
}

// The models behind `offpeak run --model FILE.gguf` and `--engine`: all that the input names, answered by one server
// that is started on demand.

/** The patience in ms, short because the user waits: a server that cannot start is reported soon. */
const OUTAGE_PATIENCE_MS = 20_000

interface EngineModels {
  engine: EngineConfig
  /** The name of the engine's server in records and messages. */
  name: string
  /** The names by which lines call the model. */
  ids: readonly string[]
  /** The name by which the engine's server knows the model; null where it answers to any name. */
  model: string | null
  concurrency_max: number
}

export function withEngine(config: Config, order: EngineModels, created: number): Config {
  const { engine, name, ids, model, concurrency_max } = order
  const offered = ids.map((id) => ({ id, endpoints: null, context_window: null, parent: null, root: null }))
  const models = upstreamModels('http://127.0.0.1/v1', offered, { api_key: null, proxy: null }, created).map(
    (one) => ({
      ...one,
      upstreams: one.upstreams.flatMap((upstream) =>
        !isOfKind(upstream, 'server')
          ? []
          : [{ ...upstream, base_url: null, engine, name, concurrency_max, model: model ?? one.model.id }],
      ),
    }),
  )
  const outage_patience_ms = Math.min(config.retry.outage_patience_ms, OUTAGE_PATIENCE_MS)
  return { ...config, models, retry: { ...config.retry, outage_patience_ms } }
}

// Facts from the servers of the configured models, where the configuration is silent: the context
// window, the endpoints, and the LoRA adapters that a server has loaded, which become models of their own.

/** The lists of models by `base_url`; servers that have not answered yet are absent. */
export type Listings = ReadonlyMap<string, readonly ServedModel[]>

/**
 * The upstreams that are asked for their models: only the lowest tiers, because higher tiers get no call before they
 * are needed, and no servers that are started on demand.
 */
export function listingUpstreams({ models }: Config): Map<string, ServerUpstream & { base_url: string }> {
  const found = new Map<string, ServerUpstream & { base_url: string }>()
  for (const upstream of models.flatMap(lowestTier))
    if (isOfKind(upstream, 'server') && upstream.engine === null && !found.has(upstream.base_url))
      found.set(upstream.base_url, upstream)
  return found
}

export function withServedModels(config: Config, lists: Listings): Config {
  if (lists.size === 0) return config
  const listings = new Map([...lists].map(([base_url, listed]) => [base_url, new Listing(listed)]))
  const models = config.models.map((one) => completed(one, listings))
  const ids = new Set(models.map(({ model }) => model.id))
  const adapters = new Map<string, ModelConfig>()
  const isNew = (id: string): boolean =>
    adapters.size < SERVED_MODELS_MAX && !ids.has(id) && !adapters.has(id)
  for (const base of models)
    for (const adapter of adaptersOf(base, listings, isNew))
      if (isNew(adapter.model.id)) adapters.set(adapter.model.id, adapter)
  return { ...config, models: [...models, ...adapters.values()] }
}

type Searched = ReadonlyMap<string, Listing>

function completed(config: ModelConfig, listings: Searched): ModelConfig {
  const { model, endpoints_configured } = config
  const said = lowestTier(config).map((upstream) => entryOf(upstream, listings))
  const endpoints = endpoints_configured ? [] : endpointsOf(said)
  return {
    ...config,
    model: {
      ...model,
      context_window: model.context_window ?? windowOf(said, model.max_output_tokens),
      endpoints: endpoints.length === 0 ? model.endpoints : endpoints,
    },
  }
}

/** The largest context window, if every server reports one: a longer request is then too long for all servers. */
function windowOf(said: readonly Said[], max_output_tokens: number | null): number | null {
  const windows = said.map((one) => one?.context_window ?? null)
  if (windows.includes(null)) return null
  const window = Math.max(...windows.map((one) => one ?? 0))
  return window < (max_output_tokens ?? 0) ? null : window
}

/** The endpoints that are in every list; servers without a list are ignored. */
function endpointsOf(said: readonly Said[]): EndpointPath[] {
  const lists = said.flatMap((one) => (one?.endpoints ? [one.endpoints] : []))
  const [first = [], ...others] = lists
  return first.filter((path) => others.every((list) => list.includes(path)))
}

type Said = Pick<ServedModel, 'context_window' | 'endpoints'> | null

function entryOf(upstream: UpstreamConfig, listings: Searched): Said {
  const listing = listingOf(upstream, listings)
  const entry = isOfKind(upstream, 'server') ? listing?.entryOf(upstream.model) : null
  return listing && entry ? { ...entry, context_window: listing.windowOf(entry) } : null
}

function listingOf(upstream: UpstreamConfig, listings: Searched): Listing | undefined {
  return !isOfKind(upstream, 'server') || upstream.base_url === null
    ? undefined
    : listings.get(upstream.base_url)
}

/** The models for a model's adapters, each with the upstreams that have it loaded and the same settings. */
function adaptersOf(base: ModelConfig, listings: Searched, isNew: (id: string) => boolean): ModelConfig[] {
  const serving = new Map<string, UpstreamConfig[]>()
  for (const upstream of base.upstreams) {
    if (!isOfKind(upstream, 'server')) continue
    for (const { id } of listingOf(upstream, listings)?.adaptersOf(upstream.model) ?? []) {
      if (!isNew(id)) continue
      const others = serving.get(id)
      if (others) others.push({ ...upstream, model: id })
      else serving.set(id, [{ ...upstream, model: id }])
    }
  }
  return [...serving].map(([id, upstreams]) => ({
    ...base,
    model: { ...base.model, id },
    upstreams,
  }))
}

function lowestTier({ upstreams }: ModelConfig): UpstreamConfig[] {
  const lowest = Math.min(...upstreams.map(({ tier }) => tier))
  return upstreams.filter(({ tier }) => tier === lowest)
}
