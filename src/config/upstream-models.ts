// The models behind `offpeak serve --upstream URL`: whatever that server lists, each with the defaults of an
// `openai` upstream and without a price.
import { ENDPOINT_PATHS, type EndpointPath } from '../domain/endpoint.ts'
import { FREE } from '../domain/money.ts'
import type { ModelConfig } from './config.ts'
import { ConfigError, shown } from './config-error.ts'
import { CONCURRENCY_MAX, TIMEOUT_MS } from './schema.ts'
import { BASE_URL_EXPECTED, parseBaseUrl } from './server-addresses.ts'
import { addressOf } from './settings.ts'

/** What a server says of a model in its list. */
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
 * `listed`: the models of the server at `base_url`; one that the server does not say the endpoints of may serve any.
 * `created`: Unix seconds.
 */
export function upstreamModels(
  base_url: string,
  listed: readonly ServedModel[],
  api_key: string | null,
  created: number,
): ModelConfig[] {
  return listed.map(({ id, endpoints, context_window, parent }) => ({
    model: {
      id,
      // A server may give the window of an adapter with its base model alone.
      context_window: context_window ?? listed.find((one) => one.id === parent)?.context_window ?? null,
      max_output_tokens: null,
      price: FREE,
      priced: false,
      supports: { structured_output: true, tools: true },
      endpoints: endpoints ?? ENDPOINT_PATHS,
      created,
    },
    upstreams: [
      {
        type: 'openai',
        name: addressOf(base_url),
        concurrency_max: CONCURRENCY_MAX,
        tier: 0,
        price: null,
        hours: [],
        live: null,
        base_url,
        engine: null,
        api_key,
        model: id,
        timeout_ms: TIMEOUT_MS,
        headers: {},
        api_key_file: null,
        ca_file: null,
        client_cert_file: null,
        client_key_file: null,
        proxy: null,
        discover: null,
      },
    ],
    spill: { when_down_ms: 60_000, when_at_risk: true },
    endpoints_configured: true,
  }))
}
