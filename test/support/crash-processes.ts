// Runs the service as real processes in a folder of their own, which a test stops and kills. The model server runs in
// the test's process: it survives every crash and counts its requests.
import assert from 'node:assert/strict'
import type { ChildProcess } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { type Call, echo, type TestUpstream, testUpstream } from '../fakes/upstream.ts'
import { configFor, line, type Storage, type WireBatch, type WireFile, type WireLine } from '../service.ts'
import { callApi, parsedLines, uploadForm } from './api.ts'
import { OFFPEAK, OffpeakProcess, until } from './offpeak-process.ts'

export class CrashTest implements AsyncDisposable {
  /** Where services that begin now keep what they have; null: a database and a folder of their own. */
  static storage: (() => Promise<Storage>) | null = null

  readonly folder: string
  readonly upstream: TestUpstream
  /** What is started: this version of the program, unless a test puts another in its place. */
  main = OFFPEAK
  /** Calls that wait for `answerHeld`. */
  readonly held: Call[] = []
  #url = ''
  readonly #processes: OffpeakProcess[] = []
  readonly #env: NodeJS.ProcessEnv

  private constructor(folder: string, upstream: TestUpstream, env: NodeJS.ProcessEnv) {
    this.folder = folder
    this.upstream = upstream
    this.#env = env
  }

  /** `more` is configuration; leases and the time for lines in flight are short, unless `lease` and `drain` say otherwise. */
  static async begin(more = '', drain = '1s', lease = '1s'): Promise<CrashTest> {
    const folder = await mkdtemp(join(tmpdir(), 'offpeak-crash-'))
    const upstream = await testUpstream()
    const storage = await CrashTest.storage?.()
    const test = new CrashTest(folder, upstream, storage?.env ?? {})
    const config = configFor(upstream.base_url, storage ? `${storage.yaml}\n${more}` : more)
      .replace('lease: 2s', `lease: ${lease}, drain: ${drain}`)
      .replace('timeout: 5s', 'timeout: 60s')
    await writeFile(join(folder, 'offpeak.yaml'), config)
    return test
  }

  /** Answers lines whose text `answers` accepts, and holds the others. */
  blockUnless(answers: (content: string) => boolean): void {
    this.upstream.reply = (call) => {
      if (answers(contentOf(call))) echo(call)
      else this.held.push(call)
    }
  }

  /** Answers everything from now on, and what is held. */
  answerAll(): void {
    this.upstream.reply = echo
    for (const call of this.held.splice(0)) echo(call)
  }

  /** Resolves when so many lines are held. A line counts once, though its worker may have lost its lease and sent it again. */
  async holds(count: number): Promise<void> {
    await until(() => new Set(this.held.map(contentOf)).size >= count)
  }

  /** How often each line arrived. */
  counts(): Map<string, number> {
    const counts = new Map<string, number>()
    for (const call of this.upstream.calls) {
      const content = contentOf(call)
      counts.set(content, (counts.get(content) ?? 0) + 1)
    }
    return counts
  }

  /** Lines that arrived so often. */
  sent(times: number): string[] {
    return [...this.counts()].filter(([, count]) => count === times).map(([content]) => content)
  }

  /**
   * How often a worker that was not killed lost its lease. On a busy machine a process may stand still for longer than its
   * lease of a second; what it had sent is sent again then.
   */
  get lostLeases(): number {
    const isLost = (line: string): boolean => line.includes('worker lease expired before it was renewed')
    return this.#processes.reduce((sum, { said }) => sum + said.filter(isLost).length, 0)
  }

  launch(args: readonly string[], env: NodeJS.ProcessEnv = {}): ChildProcess {
    return this.#launch(args, env).child
  }

  /** As npm does it: a shell in between, which is told to end and tells nobody. */
  launchUnderNpm(args: readonly string[]): ChildProcess {
    const command = [process.execPath, this.main, ...args].map((word) => `'${word}'`).join(' ')
    return this.#launch([], { npm_command: 'exec' }, ['sh', '-c', `${command}; exit $?`]).child
  }

  #launch(
    args: readonly string[],
    env: NodeJS.ProcessEnv,
    through?: readonly [string, ...string[]],
  ): OffpeakProcess {
    const more = { main: this.main, cwd: this.folder, env: { ...this.#env, ...env } }
    const started = new OffpeakProcess(args, { ...more, ...(through && { through }) })
    this.#processes.push(started)
    return started
  }

  /** `serve`, `api` or `worker`, with `env` beside the variables of all; resolves once it is ready. */
  async start(
    command: 'serve' | 'api' | 'worker',
    env: NodeJS.ProcessEnv = {},
    through?: readonly [string, ...string[]],
  ): Promise<OffpeakProcess> {
    const listening = command === 'worker' ? [] : ['--port', '0']
    const args = [command, '--data', 'data', '--config', 'offpeak.yaml', ...listening]
    const started = this.#launch(args, env, through)
    await started.ready
    if (command !== 'worker') this.#url = await started.url
    return started
  }

  async json<T>(
    method: string,
    path: string,
    body?: FormData | object,
    headers?: Record<string, string>,
  ): Promise<T> {
    return JSON.parse(await this.#ask(method, path, body, headers)) as T
  }

  /** Uploads lines `l0`, `l1`, …, which say `content` or their own name, and creates their batch, with `headers`. */
  async batchOf(count: number, content?: string, headers: Record<string, string> = {}): Promise<WireBatch> {
    const form = uploadForm(Array.from({ length: count }, (_, i) => line(`l${i}`, content)))
    const { id } = await this.json<WireFile>('POST', '/v1/files', form)
    await until(async () => (await this.json<WireFile>('GET', `/v1/files/${id}`)).status === 'processed')
    const order = { input_file_id: id, endpoint: '/v1/chat/completions', completion_window: '24h' }
    return await this.json<WireBatch>('POST', '/v1/batches', order, headers)
  }

  async batch(id: string): Promise<WireBatch> {
    return await this.json<WireBatch>('GET', `/v1/batches/${id}`)
  }

  /** Resolves when so many lines are finished for good. */
  async committed(id: string, count: number): Promise<void> {
    await until(async () => (await this.batch(id)).request_counts.completed >= count)
  }

  async completed(id: string): Promise<WireBatch> {
    await until(async () => (await this.batch(id)).status === 'completed')
    return await this.batch(id)
  }

  /** The result lines of a batch that are finished. */
  async results(id: string): Promise<WireLine[]> {
    return parsedLines(await this.#ask('GET', `/v1/batches/${id}/results?limit=10000`))
  }

  /** Every line in exactly one file, and the batch costs what its lines cost. */
  async checkResults(batch: WireBatch, count: number): Promise<void> {
    const lines = [...(await this.#lines(batch.output_file_id)), ...(await this.#lines(batch.error_file_id))]
    assert.deepEqual(
      lines.map((one) => one.custom_id),
      Array.from({ length: count }, (_, i) => `l${i}`),
    )
    assert.deepEqual(batch.request_counts, { total: count, completed: count, failed: 0 })
    const nanos = lines.reduce(
      (sum, one) => sum + Math.round((one.response?.body.usage.cost_usd ?? 0) * 1e9),
      0,
    )
    assert.equal(Math.round(batch.cost_usd * 1e9), nanos)
    assert.equal(nanos, count * 3000)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all(this.#processes.map((one) => one.endGroup('SIGKILL')))
    await this.upstream.close()
    await rm(this.folder, { recursive: true, force: true, maxRetries: 5 })
  }

  async #lines(file_id: string | null): Promise<WireLine[]> {
    if (file_id === null) return []
    return parsedLines(await this.#ask('GET', `/v1/files/${file_id}/content`))
  }

  async #ask(
    method: string,
    path: string,
    body?: FormData | object,
    headers: Record<string, string> = {},
  ): Promise<string> {
    const key = readFileSync(join(this.folder, 'data/api-key'), 'utf8').trim()
    return await callApi({ url: this.#url, key }, method, path, body, headers)
  }
}

function contentOf(call: Call): string {
  return call.body.messages.at(-1)?.content ?? ''
}
