// Makes the models of `offpeak serve --upstream URL`: each model that the server lists, with the defaults of an `openai`
// upstream and without a price.
import { ENDPOINT_PATHS, type EndpointPath } from '../domain/endpoint.ts'
import type { Config, EngineConfig, ModelConfig, OpenAiUpstream, UpstreamConfig } from './config.ts'
import { readModels } from './load.ts'
import { BASE_URL_EXPECTED, parseBaseUrl } from './schema.ts'
import { modelOf } from './settings.ts'
import { ConfigError, shown } from './sources.ts'

/** An entry in the list of models of a server. */
export interface ServedModel {
  id: string
  /** Null where the server does not say. */
  endpoints: readonly EndpointPath[] | null
  context_window: number | null
  /** Of a LoRA adapter: the ID of its base model. */
  parent: string | null
  /** Two IDs with the same root are names of one model. */
  root: string | null
}

/** The address as an upstream's `base_url` takes it; throws a ConfigError on anything else. */
export function upstreamBaseUrl(url: string): string {
  const base_url = parseBaseUrl(url)
  if (base_url === undefined) {
    throw new ConfigError([`--upstream: expected ${BASE_URL_EXPECTED}, found ${shown(url)}`])
  }
  return base_url
}

/**
 * `listed`: the models of the server at `base_url`; a model listed without endpoints may serve any. `created`: Unix
 * seconds.
 */
export function upstreamModels(
  base_url: string,
  listed: readonly ServedModel[],
  api_key: string | null,
  created: number,
): ModelConfig[] {
  const [written] = readModels([{ id: 'any', upstreams: [{ type: 'openai', base_url }] }])
  const { model, upstreams, ...terms } = modelOf(written!, {}, '', created)
  return listed.map(({ id, endpoints, context_window, parent }) => ({
    ...terms,
    model: {
      ...model,
      id,
      // A server may give the window of an adapter with its base model alone.
      context_window: context_window ?? listed.find((one) => one.id === parent)?.context_window ?? null,
      endpoints: endpoints ?? ENDPOINT_PATHS,
    },
    upstreams: upstreams.map((one) => (one.type === 'openai' ? { ...one, api_key, model: id } : one)),
    endpoints_configured: true,
  }))
}

// The models behind `offpeak run --model FILE.gguf` and `--engine`: all that the input names, answered by one server
// that is started on demand.

/** Short, because the user waits for this run: a server that cannot start is reported soon. */
const OUTAGE_PATIENCE_MS = 20_000

interface EngineModels {
  engine: EngineConfig
  /** Names the server in records and messages. */
  name: string
  /** What lines call the model. */
  ids: readonly string[]
  /** What the server calls it; null where it answers to any name. */
  model: string | null
  concurrency_max: number
}

export function withEngine(config: Config, order: EngineModels, created: number): Config {
  const { engine, name, ids, model, concurrency_max } = order
  const offered = ids.map((id) => ({ id, endpoints: null, context_window: null, parent: null, root: null }))
  const models = upstreamModels('http://127.0.0.1/v1', offered, null, created).map((one) => ({
    ...one,
    upstreams: one.upstreams.flatMap((upstream) =>
      upstream.type !== 'openai'
        ? []
        : [{ ...upstream, base_url: null, engine, name, concurrency_max, model: model ?? one.model.id }],
    ),
  }))
  const outage_patience_ms = Math.min(config.retry.outage_patience_ms, OUTAGE_PATIENCE_MS)
  return { ...config, models, retry: { ...config.retry, outage_patience_ms } }
}

// What the servers of the configured models say of them, filled in where the configuration is silent: the context
// window, the endpoints, and the LoRA adapters that a server has loaded, which become models of their own.

/** The lists of models, by `base_url`; those of servers that have not answered yet are absent. */
export type Listings = ReadonlyMap<string, readonly ServedModel[]>

/**
 * Upstreams that are asked for their models: those of the lowest tiers, because higher tiers get no call before they
 * are needed, and no servers that are started on demand.
 */
export function listingUpstreams({ models }: Config): Map<string, OpenAiUpstream & { base_url: string }> {
  const found = new Map<string, OpenAiUpstream & { base_url: string }>()
  for (const upstream of models.flatMap(lowestTier))
    if (upstream.type === 'openai' && upstream.engine === null && !found.has(upstream.base_url))
      found.set(upstream.base_url, upstream)
  return found
}

export function withServedModels(config: Config, listings: Listings): Config {
  if (listings.size === 0) return config
  const models = config.models.map((one) => completed(one, listings))
  const ids = new Set(models.map(({ model }) => model.id))
  const adapters = new Map<string, ModelConfig>()
  for (const base of models)
    for (const adapter of adaptersOf(base, listings))
      if (!ids.has(adapter.model.id) && !adapters.has(adapter.model.id))
        adapters.set(adapter.model.id, adapter)
  return { ...config, models: [...models, ...adapters.values()] }
}

function completed(config: ModelConfig, listings: Listings): ModelConfig {
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

/** The largest, and only if each server says it: what is refused for it must be too long for all of them. */
function windowOf(said: readonly Said[], max_output_tokens: number | null): number | null {
  const windows = said.map((one) => one?.context_window ?? null)
  if (windows.includes(null)) return null
  const window = Math.max(...windows.map((one) => one ?? 0))
  return window < (max_output_tokens ?? 0) ? null : window
}

/** The endpoints that are in every list; servers without a list are left out. */
function endpointsOf(said: readonly Said[]): EndpointPath[] {
  const lists = said.flatMap((one) => (one?.endpoints ? [one.endpoints] : []))
  const [first = [], ...others] = lists
  return first.filter((path) => others.every((list) => list.includes(path)))
}

type Said = Pick<ServedModel, 'context_window' | 'endpoints'> | null

/** A server that lists one model alone may answer to any name. */
function entryOf(upstream: UpstreamConfig, listings: Listings): Said {
  const listed = listingOf(upstream, listings)
  if (upstream.type !== 'openai') return null
  const [only, second] = listed
  const entry =
    listed.find(({ id }) => id === upstream.model) ?? (second === undefined ? only : undefined) ?? null
  if (entry === null || entry.context_window !== null) return entry
  // Some servers give the window of an adapter with its base model alone.
  const base = listed.find(({ id }) => id === entry.parent)
  return { ...entry, context_window: base?.context_window ?? null }
}

function listingOf(upstream: UpstreamConfig, listings: Listings): readonly ServedModel[] {
  if (upstream.type !== 'openai' || upstream.base_url === null) return []
  return listings.get(upstream.base_url) ?? []
}

/** Adapters of the model, each with the upstreams that have it loaded, at the same terms. */
function adaptersOf(base: ModelConfig, listings: Listings): ModelConfig[] {
  const serving = new Map<string, UpstreamConfig[]>()
  for (const upstream of base.upstreams) {
    if (upstream.type !== 'openai') continue
    const listed = listingOf(upstream, listings)
    for (const { id, parent } of listed) {
      if (parent === null || !isSame(listed, parent, upstream.model)) continue
      serving.set(id, [...(serving.get(id) ?? []), { ...upstream, model: id }])
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

/** Whether both are names of one model of the server. */
function isSame(listed: readonly ServedModel[], a: string, b: string): boolean {
  if (a === b) return true
  const rootOf = (id: string): string | null =>
    listed.find((one) => one.id === id && one.parent === null)?.root ?? null
  return rootOf(a) !== null && rootOf(a) === rootOf(b)
}
