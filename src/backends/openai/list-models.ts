// Which models a server offers, asked once when a service is started on top of it.
import { request } from 'undici'
import { isRecord } from '../json-record.ts'
import { secretsOf } from '../verdict/redact.ts'
import { readUpstreamError } from '../verdict/upstream-error.ts'
import { endpointOf } from './endpoint.ts'

const TIMEOUT_MS = 10_000

/**
 * The IDs that `GET base_url/models` lists, in the server's order, at least one. Throws an Error whose message
 * says what to mend: address, key, or server.
 */
export async function listUpstreamModels(base_url: string, api_key?: string | null): Promise<string[]> {
  const endpoint = endpointOf(base_url)
  const path = endpoint.path('/models')
  const where = `GET ${endpoint.origin}${path.split('?', 1)[0]}`
  const { redact } = secretsOf([api_key])

  let status: number
  let text: string
  try {
    const answer = await request(`${endpoint.origin}${path}`, {
      headers: { accept: 'application/json', ...(api_key ? { authorization: `Bearer ${api_key}` } : {}) },
      signal: AbortSignal.timeout(TIMEOUT_MS),
    })
    status = answer.statusCode
    text = await answer.body.text()
  } catch (error) {
    throw new Error(`${where} got no answer (${redact(reasonOf(error))}). Is the server running?`)
  }

  if (status === 401 || status === 403) throw new Error(`${where} answered ${status}: check the API key.`)
  if (status === 404) throw new Error(`${where} answered 404: does the base URL end in /v1?`)
  if (status !== 200) {
    throw new Error(
      `${where} answered ${status}: ${readUpstreamError(Buffer.from(text), redact).message || 'no reason given'}`,
    )
  }
  const ids = idsOf(text)
  if (ids === null) throw new Error(`${where} did not answer with a list of models.`)
  if (ids.length === 0) throw new Error(`${where} lists no model.`)
  return ids
}

function idsOf(text: string): string[] | null {
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
  const ids = data.flatMap((model: unknown) =>
    isRecord(model) && typeof model.id === 'string' && model.id !== '' ? [model.id] : [],
  )
  return [...new Set(ids)]
}

function reasonOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  if (error.name === 'TimeoutError') return `nothing came within ${TIMEOUT_MS / 1000} s`
  const mark = 'code' in error && typeof error.code === 'string' ? error.code : error.name
  return error.message || mark
}
