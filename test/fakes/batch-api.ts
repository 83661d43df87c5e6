// A batch API in memory, whose calls are answered as the test says: without a word from the test, it takes every file and
// every batch, and a batch stays unfinished until the test ends it. What it shows and says is read as the answers of a
// real one are.
import assert from 'node:assert/strict'
import { type BatchApi, BatchApiError, type BatchRequest } from '../../src/backends/batch-api/batch-api.ts'
import { unfinished } from '../../src/backends/batch-api/result-line.ts'
import { refusedCall } from '../../src/backends/openai/batch-api-failure.ts'
import { seenBatch } from '../../src/backends/openai/seen-batch.ts'
import { BatchApiUpstream } from '../../src/dispatch/senders/batch-apis/batch-api-upstream.ts'
import { ANSWER } from './scripted-backend.ts'

export interface FakeRemoteBatch {
  id: string
  name: string
  file_id: string
  /** The contents of its lines' messages, in the order of the file. */
  contents: string[]
  status: string
  errors: unknown
  output_file_id: string | null
  error_file_id: string | null
  request_counts?: { total: number; completed: number; failed: number }
}

interface FakeLine {
  custom_id: string
  content: string
}

/** What a call is answered with in place of its effect. */
export interface FakeCall {
  kind: 'upload' | 'create' | 'read' | 'results' | 'cancel' | 'find'
  contents: readonly string[]
  /** Of results: how many lines came before. */
  line?: number
}

/** The answer to a line: a status, and the body of the response; null and an error: it has none. */
export type FakeResult = [status: number | null, body: object]

export const ANSWERED: FakeResult = [200, ANSWER]

/** An answer with an error, read as that of a real batch API is. */
export function errorAnswer(
  status: number,
  error: { message: string; code?: string; type?: string },
  headers: Record<string, string> = {},
): BatchApiError {
  return refusedCall({ statusCode: status, headers }, JSON.stringify({ error }), (text) => text, 0)
}

export class FakeBatchApi implements BatchApi {
  readonly lineMetadata = false
  settleMs = 1_000
  readonly batches: FakeRemoteBatch[] = []
  /** How many files were offered, whatever became of them. */
  uploads = 0
  /** How batches are called. */
  nextId = (n: number): string => `batch-${n}`
  /** Throws what a call is answered with, or keeps it waiting. */
  onCall: (call: FakeCall) => void | Promise<void> = () => {}
  /** Which lines a file of results has before it goes on for ever without another. */
  endlessAfter = Number.POSITIVE_INFINITY
  readonly #inputs = new Map<string, { name: string; lines: FakeLine[] }>()
  readonly #outputs = new Map<string, string[]>()
  readonly #customIds = new Map<string, string>()
  #ids = 0

  /** How a line is called here. */
  idOf(content: string): string | undefined {
    return this.#customIds.get(content)
  }

  upstream(name: string, tier = 0): BatchApiUpstream {
    return new BatchApiUpstream({ name, api: this, concurrency_max: 4, modelAlias: null, tier })
  }

  /** Batches that have not ended. */
  get open(): FakeRemoteBatch[] {
    return this.batches.filter(({ status }) => status === 'in_progress')
  }

  /** Ends a batch with a result for each line; null: it is left out. */
  complete(
    batch: FakeRemoteBatch,
    resultOf: (content: string) => FakeResult | null = () => ANSWERED,
    status = 'completed',
  ): void {
    const { lines } = this.#inputs.get(batch.file_id)!
    const [output, error]: [string[], string[]] = [[], []]
    for (const { custom_id, content } of lines) {
      const result = resultOf(content)
      if (result === null) continue
      const [status_code, body] = result
      const response = status_code === null ? null : { status_code, body }
      const to = status_code === 200 ? output : error
      to.push(JSON.stringify({ custom_id, response, error: response === null ? body : null }))
    }
    batch.output_file_id = this.#store(output)
    batch.error_file_id = this.#store(error)
    batch.status = status
  }

  /** Ends a batch as one that the batch API found something wrong with, and answered none of, unless told otherwise. */
  fail(
    batch: FakeRemoteBatch,
    error: { code: string; message: string; line?: number },
    resultOf: (content: string) => FakeResult | null = () => null,
  ): void {
    this.complete(batch, resultOf, 'failed')
    batch.errors = { object: 'list', data: [error] }
  }

  #store(results: string[]): string | null {
    if (results.length === 0) return null
    const id = `file-${++this.#ids}`
    this.#outputs.set(id, results)
    return id
  }

  /** The call ends with its signal, whatever the test has it wait for. */
  async #called(call: FakeCall, signal?: AbortSignal): Promise<void> {
    const aborted = Promise.withResolvers<never>()
    const abort = (): void => aborted.reject(new BatchApiError(unfinished('aborted'), false))
    signal?.addEventListener('abort', abort)
    if (signal?.aborted) abort()
    try {
      await Promise.race([this.onCall(call), aborted.promise])
    } finally {
      signal?.removeEventListener('abort', abort)
    }
  }

  async upload(name: string, requests: readonly BatchRequest[], signal?: AbortSignal): Promise<string> {
    const lines = requests.map(({ custom_id, body }) => ({
      custom_id,
      content: JSON.parse(Buffer.from(body).toString()).messages[0].content,
    }))
    this.uploads++
    for (const { custom_id, content } of lines) this.#customIds.set(content, custom_id)
    await this.#called({ kind: 'upload', contents: lines.map((line) => line.content) }, signal)
    const id = `file-${++this.#ids}`
    this.#inputs.set(id, { name, lines })
    return id
  }

  async findFile(name: string): Promise<string | null> {
    return [...this.#inputs].find(([, file]) => file.name === name)?.[0] ?? null
  }

  async create({ name, file_id }: { name: string; file_id: string | null }, signal?: AbortSignal) {
    assert.ok(file_id !== null)
    const contents = this.#inputs.get(file_id)!.lines.map(({ content }) => content)
    await this.#called({ kind: 'create', contents }, signal)
    const id = this.nextId(++this.#ids)
    const none = { errors: null, output_file_id: null, error_file_id: null }
    const batch = { id, name, file_id, contents, status: 'in_progress', ...none }
    this.batches.push(batch)
    return seen(batch)
  }

  async find({ name }: { name: string }, signal?: AbortSignal) {
    await this.#called({ kind: 'find', contents: [] }, signal)
    return this.batches.filter((one) => one.name === name).map(seen)
  }

  async read(id: string, signal?: AbortSignal) {
    const batch = this.batches.find((one) => one.id === id)
    await this.#called({ kind: 'read', contents: batch?.contents ?? [] }, signal)
    return batch ? seen(batch) : null
  }

  async cancel(id: string, signal?: AbortSignal): Promise<void> {
    const batch = this.batches.find((one) => one.id === id)
    await this.#called({ kind: 'cancel', contents: batch?.contents ?? [] }, signal)
    if (batch?.status === 'in_progress') batch.status = 'cancelled'
  }

  async *lines(file_id: string, signal?: AbortSignal): AsyncGenerator<Buffer> {
    for (const [i, line] of (this.#outputs.get(file_id) ?? []).entries()) {
      await this.#called({ kind: 'results', contents: [], line: i }, signal)
      if (i === this.endlessAfter) {
        await new Promise<void>((resolve) => {
          if (signal?.aborted) resolve()
          signal?.addEventListener('abort', () => resolve())
        })
        throw new BatchApiError(unfinished('aborted'), false)
      }
      yield Buffer.from(line)
    }
  }

  async remove(file_id: string): Promise<void> {
    this.#inputs.delete(file_id)
  }

  async close(): Promise<void> {}
}

function seen(batch: FakeRemoteBatch) {
  return seenBatch(batch, (text) => text)!
}
