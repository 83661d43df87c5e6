// A client of the service: uploads, batches, results. Every call has a limit of time, so that a call that hangs is found.
import assert from 'node:assert/strict'
import { setTimeout as wait } from 'node:timers/promises'
import { line, type WireBatch, type WireFile, type WireLine } from '../service.ts'

const POLL_MS = 250

export class Client {
  readonly #url: string
  readonly #key: string
  readonly #callMsMax: number

  constructor(url: string, key: string, callMsMax: number) {
    this.#url = url
    this.#key = key
    this.#callMsMax = callMsMax
  }

  async call(path: string, body?: FormData | object): Promise<Response> {
    const json = body !== undefined && !(body instanceof FormData)
    return await fetch(this.#url + path, {
      method: body === undefined ? 'GET' : 'POST',
      headers: {
        authorization: `Bearer ${this.#key}`,
        ...(json ? { 'content-type': 'application/json' } : {}),
      },
      ...(body === undefined ? {} : { body: json ? JSON.stringify(body) : (body as FormData) }),
      signal: AbortSignal.timeout(this.#callMsMax),
    })
  }

  /** A batch of lines that are called `name-0`, `name-1` and so on. */
  async createBatch(name: string, lines: number): Promise<string> {
    const content = names(name, lines).map((id) => JSON.stringify(line(id)))
    const form = new FormData()
    form.set('purpose', 'batch')
    form.set('file', new Blob([content.join('\n')]), 'input.jsonl')
    const file = await this.#json<WireFile>('/v1/files', form)
    const order = { input_file_id: file.id, endpoint: '/v1/chat/completions', completion_window: '24h' }
    return (await this.#json<WireBatch>('/v1/batches', order)).id
  }

  async batch(id: string): Promise<WireBatch> {
    return await this.#json<WireBatch>(`/v1/batches/${id}`)
  }

  /** Resolves when the batch has ended, or rejects after `limitMs`. */
  async ended(id: string, limitMs: number): Promise<WireBatch> {
    for (const end = Date.now() + limitMs; ; await wait(POLL_MS)) {
      const batch = await this.batch(id)
      if (['completed', 'failed', 'expired', 'cancelled'].includes(batch.status)) return batch
      const { status, request_counts, waiting_reason } = batch
      assert.ok(
        Date.now() < end,
        `not ended within ${limitMs / 1000} s: ${JSON.stringify({ status, request_counts, waiting_reason })}`,
      )
    }
  }

  /** The custom IDs in the output file. */
  async resultNames(batch: WireBatch): Promise<string[]> {
    const text = await (await this.call(`/v1/files/${batch.output_file_id}/content`)).text()
    return text
      .split('\n')
      .filter(Boolean)
      .map((row) => (JSON.parse(row) as WireLine).custom_id)
  }

  async #json<T>(path: string, body?: FormData | object): Promise<T> {
    const response = await this.call(path, body)
    if (!response.ok) throw new Error(`${path}: ${response.status} ${await response.text()}`)
    return (await response.json()) as T
  }
}

export function names(name: string, count: number): string[] {
  return Array.from({ length: count }, (_, i) => `${name}-${i}`)
}
