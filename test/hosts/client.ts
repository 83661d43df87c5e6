// A client of the service: uploads, batches, results. Every call has a limit of time, so that a call that hangs is found.
import assert from 'node:assert/strict'
import { setTimeout as wait } from 'node:timers/promises'
import { line, type WireBatch, type WireFile, type WireLine } from '../service.ts'
import { type ApiAt, askApi, parsedLines, uploadForm } from '../support/api.ts'

const POLL_MS = 250

export class Client {
  readonly #at: ApiAt
  readonly #callMsMax: number

  constructor(at: ApiAt, callMsMax: number) {
    this.#at = at
    this.#callMsMax = callMsMax
  }

  async call(path: string, body?: FormData | object): Promise<Response> {
    const signal = AbortSignal.timeout(this.#callMsMax)
    return await askApi(this.#at, body === undefined ? 'GET' : 'POST', path, body, { signal })
  }

  /** A batch of lines that are called `name-0`, `name-1` and so on. */
  async createBatch(name: string, lines: number): Promise<string> {
    const form = uploadForm(names(name, lines).map((id) => line(id)))
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
    return parsedLines<WireLine>(text).map(({ custom_id }) => custom_id)
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
