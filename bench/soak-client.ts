// One client of a soak: batch after batch, of a few lines or of many, and with every one of them something that
// clients do: reading along, cancelling, hanging up in the middle of a download or of an upload, deleting.
import { request } from 'node:http'
import { setTimeout } from 'node:timers/promises'
import { askApi, uploadForm } from '../test/support/api.ts'
import type { Batch } from './batch-client.ts'

export interface SoakCounts {
  /** Lines of batches that have ended. */
  lines: number
  batches: number
  cancelled: number
  calls: number
  complaints: string[]
}

interface WireBatch extends Batch {
  output_file_id: string | null
  error_file_id: string | null
}

const SIZES = [5, 800, 1_000, 2_500, 10_000]
const PAD = 'lorem ipsum dolor sit amet '.repeat(12)
const ASK_MS = 150
const CANCEL_EVERY = 7
const HANG_UP_EVERY = 3
const ENDED = ['completed', 'failed', 'expired', 'cancelled']

export class SoakClient {
  readonly #url: string
  readonly #key: string
  readonly #number: number
  readonly #counts: SoakCounts
  #batches = 0

  constructor(options: { url: string; key: string; number: number; counts: SoakCounts }) {
    this.#url = options.url
    this.#key = options.key
    this.#number = options.number
    this.#counts = options.counts
  }

  async oneBatch(): Promise<void> {
    const turn = this.#batches++
    const size = SIZES[(turn + this.#number) % SIZES.length]!
    try {
      const file = await this.#upload(size)
      const batch = await this.#run(file, turn)
      this.#counts.batches++
      this.#counts.lines += size
      const { total, completed, failed } = batch.request_counts
      if (total !== size || completed + failed !== total || (batch.status === 'completed' && failed > 0))
        this.#counts.complaints.push(
          `${batch.id} is ${batch.status}: ${JSON.stringify(batch.request_counts)}`,
        )
      if (batch.status === 'cancelled') this.#counts.cancelled++
      await this.#collect(batch, turn)
      for (const id of [file, batch.output_file_id, batch.error_file_id])
        if (id !== null && turn % 2 === 0) await this.#json('DELETE', `/v1/files/${id}`)
    } catch (error) {
      this.#counts.complaints.push(String(error))
    }
  }

  async #upload(size: number): Promise<string> {
    if (this.#batches % HANG_UP_EVERY === 0) await this.#hangUpUploading()
    const lines = Array.from({ length: size }, (_, i) => inputLine(i))
    const form = uploadForm(lines.join(''))
    let file = await this.#json<{ id: string; status: string }>('POST', '/v1/files', form)
    while (file.status === 'pending') {
      await setTimeout(ASK_MS)
      file = await this.#json('GET', `/v1/files/${file.id}`)
    }
    if (file.status !== 'processed') throw new Error(`the file is ${file.status}`)
    return file.id
  }

  async #run(input_file_id: string, turn: number): Promise<WireBatch> {
    const order = { input_file_id, endpoint: '/v1/chat/completions', completion_window: '24h' }
    let batch = await this.#json<WireBatch>('POST', '/v1/batches', order)
    if (turn % CANCEL_EVERY === CANCEL_EVERY - 1) batch = await this.#cancel(batch)
    let after = '0'
    while (!ENDED.includes(batch.status)) {
      await setTimeout(ASK_MS)
      batch = await this.#json('GET', `/v1/batches/${batch.id}`)
      const page = await this.#call('GET', `/v1/batches/${batch.id}/results?after=${after}`)
      after = page.headers.get('x-next-after') ?? after
      await page.arrayBuffer()
      await this.#json('GET', '/v1/batches?limit=5')
    }
    return batch
  }

  /** Five lines may be done before anybody can cancel them. */
  async #cancel(batch: WireBatch): Promise<WireBatch> {
    try {
      return await this.#json('POST', `/v1/batches/${batch.id}/cancel`, {})
    } catch (error) {
      if (!String(error).includes('batch_not_cancellable')) throw error
      return await this.#json('GET', `/v1/batches/${batch.id}`)
    }
  }

  async #collect(batch: WireBatch, turn: number): Promise<void> {
    for (const id of [batch.output_file_id, batch.error_file_id]) {
      if (id === null) continue
      if (turn % HANG_UP_EVERY === 0) await this.#hangUpDownloading(id)
      const file = await this.#call('GET', `/v1/files/${id}/content`)
      let lines = 0
      for await (const piece of file.body ?? []) for (const byte of piece) if (byte === 10) lines++
      const { completed, failed } = batch.request_counts
      const expected = id === batch.output_file_id ? completed : failed
      if (lines !== expected) throw new Error(`${id} has ${lines} lines of ${expected}`)
    }
    await this.#json('GET', '/v1/usage/entities')
  }

  async #hangUpDownloading(file_id: string): Promise<void> {
    const abort = new AbortController()
    const file = await this.#call('GET', `/v1/files/${file_id}/content`, undefined, abort.signal)
    const reader = file.body?.getReader()
    await reader?.read()
    abort.abort()
    await reader?.closed.catch(() => {})
  }

  /** The first half of a form, and then nothing. */
  async #hangUpUploading(): Promise<void> {
    const half = request(`${this.#url}/v1/files`, {
      method: 'POST',
      headers: {
        authorization: `Bearer ${this.#key}`,
        'content-type': 'multipart/form-data; boundary=x',
      },
    })
    const over = new Promise<void>((resolve) => half.once('close', resolve))
    half.on('error', () => {})
    half.write('--x\r\ncontent-disposition: form-data; name="file"; filename="half.jsonl"\r\n\r\n')
    for (let i = 0; i < 50; i++) half.write(inputLine(i))
    half.write('', () => half.destroy())
    await over
  }

  async #json<T>(method: string, path: string, body?: object): Promise<T> {
    const response = await this.#call(method, path, body)
    return (await response.json()) as T
  }

  async #call(method: string, path: string, body?: object, signal?: AbortSignal): Promise<Response> {
    this.#counts.calls++
    const response = await askApi({ url: this.#url, key: this.#key }, method, path, body, { signal })
    if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${await response.text()}`)
    return response
  }
}

function inputLine(i: number): string {
  const body = { model: 'bench', messages: [{ role: 'user', content: `${i} ${PAD}` }], max_tokens: 16 }
  return `${JSON.stringify({ custom_id: `line-${i}`, method: 'POST', url: '/v1/chat/completions', body })}\n`
}
