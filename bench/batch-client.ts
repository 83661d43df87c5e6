// The calls of the benchmarks to a running service: upload, create, wait. It asks often, since what is measured
// ends between two questions.
import { execFileSync } from 'node:child_process'
import { once } from 'node:events'
import { createWriteStream } from 'node:fs'
import { setTimeout } from 'node:timers/promises'
import { type ApiAt, callApi } from '../test/support/api.ts'
import { sendFile } from './upload-client.ts'

export interface Batch {
  id: string
  status: string
  output_file_id: string | null
  results?: unknown[]
  request_counts: { total: number; completed: number; failed: number }
}

export class BatchClient {
  readonly #at: ApiAt

  constructor(at: ApiAt) {
    this.#at = at
  }

  /** Resolves with the file's ID once it is validated. */
  async upload(path: string, ask_every_ms: number): Promise<string> {
    const { id } = JSON.parse(await sendFile(`${this.#at.url}/v1/files`, this.#at.key, path))
    let file = await this.call('GET', `/v1/files/${id}`)
    while (file.status === 'pending') {
      await setTimeout(ask_every_ms)
      file = await this.call('GET', `/v1/files/${file.id}`)
    }
    if (file.status !== 'processed') throw new Error(`the file is ${file.status}`)
    return file.id
  }

  async create(
    input_file_id: string,
    options: { endpoint?: string; headers?: Record<string, string>; more?: object } = {},
  ): Promise<Batch> {
    const endpoint = options.endpoint ?? '/v1/chat/completions'
    const order = { input_file_id, endpoint, completion_window: '24h', ...options.more }
    return await this.call('POST', '/v1/batches', order, options.headers)
  }

  async get(id: string): Promise<Batch> {
    return await this.call('GET', `/v1/batches/${id}`)
  }

  async completed(id: string, ask_every_ms: number): Promise<Batch> {
    let batch = await this.get(id)
    while (batch.status !== 'completed') {
      if (['failed', 'expired', 'cancelled'].includes(batch.status)) throw new Error(`it is ${batch.status}`)
      await setTimeout(ask_every_ms)
      batch = await this.get(id)
    }
    return batch
  }

  /** The answer to a call. */
  async call(
    method: string,
    path: string,
    body?: object,
    headers: Record<string, string> = {},
  ): Promise<Batch> {
    return JSON.parse(await callApi(this.#at, method, path, body, headers)) as Batch
  }
}

/** A key of another project in the same data folder. */
export function makeKey(main: string, project: string, flags: readonly string[]): string {
  const args = [main, 'keys', 'create', '--project', project, '--json', ...flags]
  const { key } = JSON.parse(execFileSync(process.execPath, args, { encoding: 'utf8' }))
  if (typeof key !== 'string') throw new Error('keys create printed no key')
  return key
}

/** Writes `count` lines of about `bytes` each for the model `bench`. */
export async function writeLines(path: string, count: number, bytes: number): Promise<void> {
  const out = createWriteStream(path)
  const filler = 'lorem ipsum dolor sit amet '.repeat(Math.ceil(bytes / 27))
  for (let i = 0; i < count; i++) {
    const content = `${i} ${filler}`.slice(0, Math.max(1, bytes - 150))
    const body = { model: 'bench', messages: [{ role: 'user', content }], max_tokens: 64 }
    const text = JSON.stringify({ custom_id: `line-${i}`, method: 'POST', url: '/v1/chat/completions', body })
    if (!out.write(`${text}\n`)) await once(out, 'drain')
  }
  out.end()
  await once(out, 'finish')
}
