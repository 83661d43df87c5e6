// One Offpeak of several as a real process: started, killed and asked by a test, and its books checked.
import { spawnSync } from 'node:child_process'
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { setTimeout } from 'node:timers/promises'
import { freePort } from '../../src/engines/engine-access.ts'
import { callApi, uploadForm } from '../support/api.ts'
import { cleanEnv, OFFPEAK } from '../support/offpeak-process.ts'
import { type ServiceProcess, ServiceProcesses } from './service-processes.ts'

const ENDED_MS_MAX = 90_000
const ENDED = ['completed', 'failed', 'expired', 'cancelled']

export class Side {
  readonly processes: ServiceProcesses
  readonly folder: string
  readonly port: number
  readonly url: string
  #running: ServiceProcess | null = null

  constructor(folder: string, port: number, onFault: (problem: string) => void) {
    this.folder = folder
    this.port = port
    this.url = `http://127.0.0.1:${port}`
    this.processes = new ServiceProcesses({ folder, env: {}, port, onLeaseLost: () => {}, onFault })
  }

  static async make(folder: string, config: string, onFault: (problem: string) => void): Promise<Side> {
    mkdirSync(folder, { recursive: true })
    writeFileSync(join(folder, 'offpeak.yaml'), config)
    return new Side(folder, await freePort(), onFault)
  }

  async start(): Promise<void> {
    this.#running = this.processes.launch('serve')
    await this.#running.process.ready
  }

  async kill(): Promise<void> {
    if (this.#running) await this.processes.kill(this.#running, true)
  }

  get key(): string {
    return readFileSync(join(this.folder, 'offpeak-data/api-key'), 'utf8').trim()
  }

  async ask(method: string, path: string, body?: FormData | object): Promise<Record<string, unknown>> {
    const text = await callApi(this, method, path, body)
    return path.endsWith('/content') ? { text } : JSON.parse(text)
  }

  /** Asks again while it is down. */
  async insist(method: string, path: string): Promise<Record<string, unknown>> {
    for (;;) {
      try {
        return await this.ask(method, path)
      } catch {
        await setTimeout(50)
      }
    }
  }

  rows<T>(sql: string): T[] {
    const db = new DatabaseSync(join(this.folder, 'offpeak-data/offpeak.db'), { readOnly: true })
    try {
      return db.prepare(sql).all() as T[]
    } finally {
      db.close()
    }
  }

  /** Resolves with the ID of a batch of these lines. */
  async create(lines: readonly object[]): Promise<string> {
    const file = await this.ask('POST', '/v1/files', uploadForm(lines))
    const batch = await this.ask('POST', '/v1/batches', {
      input_file_id: file.id,
      endpoint: '/v1/chat/completions',
      completion_window: '24h',
    })
    return String(batch.id)
  }

  /** The batch when it has ended, or as it is after a minute and a half. */
  async ended(id: string): Promise<Record<string, unknown>> {
    const until = performance.now() + ENDED_MS_MAX
    for (;;) {
      const batch = await this.insist('GET', `/v1/batches/${id}`)
      if (ENDED.includes(String(batch.status)) || performance.now() > until) return batch
      await setTimeout(50)
    }
  }

  /** What `offpeak doctor …` prints, and whether it found something to fix. */
  doctor(...args: string[]): { said: string; isWell: boolean } {
    const { status, stdout, stderr } = spawnSync(
      process.execPath,
      [OFFPEAK, 'doctor', ...args, '--config', 'offpeak.yaml'],
      { cwd: this.folder, env: cleanEnv(), encoding: 'utf8' },
    )
    if (status !== 0 && status !== 1)
      throw new Error(`doctor ${args.join(' ')} ended with ${status}: ${stderr}`)
    return { said: stdout, isWell: status === 0 }
  }

  /** What is wrong with its books; '' if nothing is. */
  books(): string {
    const { said, isWell } = this.doctor('books')
    return isWell ? '' : said
  }
}
