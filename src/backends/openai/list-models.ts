// Which models a server offers, and what it says of them.
import type { Dispatcher } from 'undici'
import type { EndpointPath } from '../../domain/endpoint.ts'
import { isRecord } from '../json-record.ts'
import { secretsOf } from '../verdict/redact.ts'
import { readUpstreamError } from '../verdict/upstream-error.ts'
import { servedEndpoints } from './served-endpoints.ts'
import { type ServedFacts, servedFacts } from './served-facts.ts'
import { serverAddressOf } from './server-address.ts'

const TIMEOUT_MS = 10_000

/** Nobody answers at the address, or not yet. */
export class ServerDown extends Error {}

export interface ListedModel extends ServedFacts {
  id: string
  /** What it serves, where the server says so. */
  endpoints: EndpointPath[] | null
}

/** How the server is reached; the same as for its lines. */
export interface ListOptions {
  api_key?: string | null
  headers?: Readonly<Record<string, string>>
  certificates?: { ca?: Buffer; cert?: Buffer; key?: Buffer }
  proxy?: string | null
  timeout_ms?: number
}

/**
 * The models that `GET base_url/models` lists, in the server's order, at least one. Throws an Error whose message
 * says what to fix: address, key, or server.
 */
export async function listUpstreamModels(
  base_url: string,
  options: ListOptions = {},
): Promise<ListedModel[]> {
  const { api_key, headers = {}, timeout_ms = TIMEOUT_MS } = options
  const address = serverAddressOf(base_url)
  const path = address.path('/models')
  const where = `GET ${address.origin}${path.split('?', 1)[0]}`
  const { redact } = secretsOf([api_key, ...Object.values(headers)])
  const undici = await import('undici')
  const dispatcher = dispatcherOf(undici, options)

  let status: number
  let text: string
  try {
    const answer = await undici.request(`${address.origin}${path}`, {
      headers: {
        accept: 'application/json',
        ...(api_key ? { authorization: `Bearer ${api_key}` } : {}),
        ...headers,
      },
      signal: AbortSignal.timeout(timeout_ms),
      ...(dispatcher === null ? {} : { dispatcher }),
    })
    status = answer.statusCode
    text = await answer.body.text()
  } catch (error) {
    throw new ServerDown(`${where} got no answer (${redact(reasonOf(error))}). Is the server running?`)
  } finally {
    await dispatcher?.close()
  }

  if (status === 401 || status === 403) throw new Error(`${where} answered ${status}: check the API key.`)
  if (status === 404) throw new Error(`${where} answered 404: does the base URL end in /v1?`)
  if (status !== 200) {
    throw new Error(
      `${where} answered ${status}: ${readUpstreamError(Buffer.from(text), redact).message || 'no reason given'}`,
    )
  }
  const models = modelsOf(text)
  if (models === null) throw new Error(`${where} did not answer with a list of models.`)
  if (models.length === 0) throw new Error(`${where} lists no model.`)
  return models
}

function dispatcherOf(
  { Agent, ProxyAgent }: typeof import('undici'),
  { certificates = {}, proxy }: ListOptions,
): Dispatcher | null {
  if (proxy) return new ProxyAgent({ uri: proxy, requestTls: certificates })
  return Object.keys(certificates).length === 0 ? null : new Agent({ connect: certificates })
}

function modelsOf(text: string): ListedModel[] | null {
  let parsed: unknown
  try {
    parsed = JSON.parse(text)
  } catch {
    return null
  }
  const data = isRecord(parsed) ? parsed.data : null
  // Ollama with nothing pulled says `"data": null`.
  if (data === null && isRecord(parsed) && parsed.object === 'list') return []
  if (!Array.isArray(data)) return null
  const models = new Map<string, ListedModel>()
  for (const model of data) {
    if (!isRecord(model) || typeof model.id !== 'string' || model.id === '' || models.has(model.id)) continue
    models.set(model.id, { id: model.id, endpoints: servedEndpoints(model), ...servedFacts(model) })
  }
  return [...models.values()]
}

function reasonOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  if (error.name === 'TimeoutError') return `nothing came in time`
  const mark = 'code' in error && typeof error.code === 'string' ? error.code : error.name
  return error.message || mark
}
