// The service as real processes on a folder of their own, to be stopped and killed, before a model server in
// the test's process: that one survives every crash and counts what it was asked.
import assert from 'node:assert/strict'
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { readdirSync, readFileSync } from 'node:fs'
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { type Call, echo, type TestUpstream, testUpstream } from '../fakes/upstream.ts'
import { configFor, line, type Storage, type WireBatch, type WireFile, type WireLine } from '../service.ts'

/** As its users start it: what was compiled once is kept. */
const MAIN = fileURLToPath(new URL('../../bin/offpeak.js', import.meta.url))
/** Ours without whatever the developer has set for Offpeak. */
const ENV = Object.fromEntries(Object.entries(process.env).filter(([name]) => !/^(OFFPEAK_|npm_)/.test(name)))
/** Between two questions to another process, which has no way to tell by itself. */
const ASK_AGAIN_MS = 20

export interface Started {
  child: ChildProcess
  /** The first line on standard output. */
  ready: string
  /** What it has written to standard error. */
  log(): string
  /** To the process alone; resolves with its exit code, null after a kill. */
  end(signal: NodeJS.Signals): Promise<number | null>
  /** To the process and all that it started. */
  endGroup(signal: NodeJS.Signals): Promise<number | null>
}

export class CrashTest implements AsyncDisposable {
  /** Where services that begin now keep what they have; null: a database and a folder of their own. */
  static storage: (() => Promise<Storage>) | null = null

  readonly folder: string
  readonly upstream: TestUpstream
  /** What is started: this version of the program, unless a test puts another in its place. */
  main = MAIN
  /** Calls that wait for `answerHeld`. */
  readonly held: Call[] = []
  #url = ''
  readonly #running = new Set<ChildProcess>()
  /** What all processes have written to standard error. */
  #log = ''
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
    return this.#log.split('worker lease expired before it was renewed').length - 1
  }

  launch(args: readonly string[], env?: NodeJS.ProcessEnv): ChildProcess {
    return this.#launch(process.execPath, [this.main, ...args], env)
  }

  /** As npm does it: a shell in between, which is told to end and tells nobody. */
  launchUnderNpm(args: readonly string[]): ChildProcess {
    const command = [process.execPath, MAIN, ...args].map((word) => `'${word}'`).join(' ')
    return this.#launch('sh', ['-c', `${command}; exit $?`], { npm_command: 'exec' })
  }

  #launch(command: string, args: readonly string[], env: NodeJS.ProcessEnv = {}): ChildProcess {
    const child = spawn(command, args, {
      cwd: this.folder,
      env: { ...ENV, ...this.#env, ...env },
      // A group of its own, so that it can be killed with its children.
      detached: true,
      stdio: ['ignore', 'pipe', 'pipe'],
    })
    this.#running.add(child)
    child.stderr?.on('data', (piece: Buffer) => {
      this.#log += piece.toString()
    })
    return child
  }

  /** `serve`, `api` or `worker`, with `env` beside the variables of all; resolves once it is ready. */
  async start(command: 'serve' | 'api' | 'worker', env?: NodeJS.ProcessEnv): Promise<Started> {
    const listening = command === 'worker' ? [] : ['--port', '0']
    const child = this.launch([command, '--data', 'data', '--config', 'offpeak.yaml', ...listening], env)
    const exit = once(child, 'exit')
    let log = ''
    child.stderr?.on('data', (piece: Buffer) => {
      log += piece.toString()
    })
    const ready = await new Promise<string>((resolve, reject) => {
      let said = ''
      child.stdout?.on('data', (piece: Buffer) => {
        said += piece.toString()
        if (said.includes('\n')) resolve(said.slice(0, said.indexOf('\n')))
      })
      exit.then(() => reject(new Error(`it ended before it was ready: ${log}`)), reject)
    })
    if (command !== 'worker') this.#url = ready.replace('offpeak listening on ', '')
    const end = async (kill: () => void): Promise<number | null> => {
      kill()
      const [code] = await exit
      return typeof code === 'number' ? code : null
    }
    return {
      child,
      ready,
      log: () => log,
      end: (signal) => end(() => child.kill(signal)),
      endGroup: (signal) => end(() => killGroup(child, signal)),
    }
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
    const text = Array.from({ length: count }, (_, i) => JSON.stringify(line(`l${i}`, content))).join('\n')
    const form = new FormData()
    form.set('purpose', 'batch')
    form.set('file', new Blob([text]), 'input.jsonl')
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
    return parsed(await this.#ask('GET', `/v1/batches/${id}/results?limit=10000`))
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
    for (const child of this.#running) {
      if (child.exitCode !== null || child.signalCode !== null) continue
      const exit = once(child, 'exit')
      killGroup(child, 'SIGKILL')
      await exit
    }
    await this.upstream.close()
    await rm(this.folder, { recursive: true, force: true, maxRetries: 5 })
  }

  async #lines(file_id: string | null): Promise<WireLine[]> {
    if (file_id === null) return []
    return parsed(await this.#ask('GET', `/v1/files/${file_id}/content`))
  }

  async #ask(
    method: string,
    path: string,
    body?: FormData | object,
    headers: Record<string, string> = {},
  ): Promise<string> {
    const key = (await readFile(join(this.folder, 'data/api-key'), 'utf8')).trim()
    const json = body !== undefined && !(body instanceof FormData)
    const response = await fetch(this.#url + path, {
      method,
      headers: {
        authorization: `Bearer ${key}`,
        ...(json ? { 'content-type': 'application/json' } : {}),
        ...headers,
      },
      ...(body === undefined ? {} : { body: body instanceof FormData ? body : JSON.stringify(body) }),
    })
    const text = await response.text()
    if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${text}`)
    return text
  }
}

function parsed(jsonl: string): WireLine[] {
  return jsonl
    .split('\n')
    .filter(Boolean)
    .map((text) => JSON.parse(text) as WireLine)
}

/** Asks another process until it says so. */
export async function until(ask: () => Promise<boolean> | boolean): Promise<void> {
  while (!(await ask())) await setTimeout(ASK_AGAIN_MS)
}

/** Whether the process still does anything; one that has ended may wait for ever to be looked after. */
export function isAlive(pid: number): boolean {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
    return stat.slice(stat.lastIndexOf(')') + 2, stat.lastIndexOf(')') + 3) !== 'Z'
  } catch {
    return false
  }
}

/** SIGKILL, unless the process has ended by itself meanwhile. */
export function killIfThere(pid: number): void {
  try {
    process.kill(pid, 'SIGKILL')
  } catch (error) {
    if (!(error instanceof Error && 'code' in error && error.code === 'ESRCH')) throw error
  }
}

/** The processes that `child` has started. */
export function childrenOf(child: ChildProcess): number[] {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .filter((pid) => parentOf(pid) === child.pid)
    .map(Number)
}

function parentOf(pid: string): number | null {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
    return Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[1])
  } catch {
    // It has ended meanwhile.
    return null
  }
}

function killGroup(child: ChildProcess, signal: NodeJS.Signals): void {
  if (child.pid !== undefined) process.kill(-child.pid, signal)
}

function contentOf(call: Call): string {
  return call.body.messages.at(-1)?.content ?? ''
}
