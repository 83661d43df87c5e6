// Restarts every process of a service in turn while clients call it and batches run, and counts lost calls, lines that
// were sent twice or never, and wrong counts. It takes longer than a test:
//
//   node test/support/rolling-restart.ts [ROUNDS]
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout } from 'node:timers/promises'
import { Balancer } from '../fakes/balancer.ts'
import { withoutPostgres } from '../fakes/postgres-server.ts'
import { sharedStorage } from '../fakes/shared-storage.ts'
import { echo, testUpstream } from '../fakes/upstream.ts'
import { configFor, line, type Storage, type WireBatch, type WireFile, type WireLine } from '../service.ts'
import { callApi, parsedLines, uploadForm } from './api.ts'
import { OffpeakProcess } from './offpeak-process.ts'

const CLIENTS = 2
const LINES = 50
/** How long an answer takes. */
const ANSWER_MS = 30
const POLL_MS = 20
/** As long as the slowest of them may need, on a busy machine, to see that one is going. */
const CONFIG = 'listen: {stop_delay: 700ms}\nrate_limit: {requests_per_minute: 0}\nlog: {level: warn}'

export type Role = 'serve' | 'api' | 'worker'

export interface RollingReport {
  /** Processes that were restarted. */
  restarts: number
  calls: number
  batches: number
  lines: number
  /** What should not have happened. */
  complaints: string[]
}

/** Each of `roles` is a process; each is restarted once a round, one after the other. */
export async function rollingRestart(
  roles: readonly Role[],
  storage: Storage,
  rounds = 1,
): Promise<RollingReport> {
  const folder = await mkdtemp(join(tmpdir(), 'offpeak-rolling-'))
  await using upstream = await testUpstream(async (call) => {
    await setTimeout(ANSWER_MS)
    echo(call)
  })
  await using balancer = new Balancer()
  const config = configFor(upstream.base_url, `${storage.yaml}\n${CONFIG}`).replace(
    'timeout: 5s',
    'timeout: 60s',
  )
  await writeFile(join(folder, 'offpeak.yaml'), config)
  const report: RollingReport = { restarts: 0, calls: 0, batches: 0, lines: 0, complaints: [] }
  const fleet: OffpeakProcess[] = []
  const start = async (role: Role, place: number): Promise<void> => {
    const data = `data-${role === 'serve' ? 0 : place}`
    const listening = role === 'worker' ? [] : ['--port', '0']
    const args = [role, '--config', 'offpeak.yaml', '--data', data, ...listening]
    const started = new OffpeakProcess(args, { cwd: folder, env: storage.env })
    fleet[place] = started
    await started.ready
    if (role !== 'worker') balancer.add(await started.url)
  }
  try {
    // The first one makes the key.
    const [first, ...others] = roles
    if (first) await start(first, 0)
    await Promise.all(others.map((role, i) => start(role, i + 1)))
    const key = (await readFile(join(folder, 'data-0', 'api-key'), 'utf8')).trim()
    const client = new Client(balancer, key, report)
    let going = true
    const clients = Array.from({ length: CLIENTS }, async (_, i) => {
      for (let batch = 0; going; batch++) await client.oneBatch(`c${i}b${batch}`)
    })
    for (let round = 0; round < rounds; round++) {
      for (const [place, role] of roles.entries()) {
        // Work is under way whenever something is stopped.
        await upstream.arrived(upstream.calls.length + LINES)
        const stopped = fleet[place]!
        const code = await stopped.end('SIGTERM')
        if (code !== 0) report.complaints.push(`${role} ended with ${code}: ${stopped.log}`)
        if (role !== 'worker') balancer.remove(await stopped.url)
        await start(role, place)
        report.restarts++
      }
    }
    going = false
    await Promise.all(clients)
    const counts = new Map<string, number>()
    for (const { body } of upstream.calls) {
      const text = body.messages[0]?.content ?? ''
      counts.set(text, (counts.get(text) ?? 0) + 1)
    }
    report.lines = counts.size
    if (counts.size !== report.batches * LINES)
      report.complaints.push(`${counts.size} lines were sent, of ${report.batches * LINES}`)
    for (const [text, count] of counts)
      if (count !== 1) report.complaints.push(`${text} was sent ${count} times`)
    return report
  } finally {
    await Promise.all(fleet.map((one) => one.endGroup('SIGKILL')))
    await rm(folder, { recursive: true, force: true, maxRetries: 5 })
  }
}

/** Does what people do, through the balancer, and complains about whatever does not work the first time. */
class Client {
  readonly #balancer: Balancer
  readonly #key: string
  readonly #report: RollingReport

  constructor(balancer: Balancer, key: string, report: RollingReport) {
    this.#balancer = balancer
    this.#key = key
    this.#report = report
  }

  async oneBatch(name: string): Promise<void> {
    const { complaints } = this.#report
    const ids = Array.from({ length: LINES }, (_, i) => `${name}-${i}`)
    const form = uploadForm(ids.map((id) => line(id)))
    let file = await this.#json<WireFile>('POST', '/v1/files', form)
    while (file?.status === 'pending') file = await this.#later(`/v1/files/${file.id}`)
    if (!file) return
    const order = { input_file_id: file.id, endpoint: '/v1/chat/completions', completion_window: '24h' }
    let batch = await this.#json<WireBatch>('POST', '/v1/batches', order)
    while (batch && ['validating', 'queued', 'in_progress'].includes(batch.status))
      batch = await this.#later(`/v1/batches/${batch.id}`)
    if (!batch) return
    this.#report.batches++
    const { total, completed, failed } = batch.request_counts
    if (batch.status !== 'completed' || total !== LINES || completed !== LINES || failed !== 0)
      complaints.push(`${name} is ${batch.status}: ${JSON.stringify(batch.request_counts)}`)
    const text = await this.#call('GET', `/v1/files/${batch.output_file_id}/content`)
    const got = parsedLines<WireLine>(text ?? '').map(({ custom_id }) => custom_id)
    if (got.join() !== ids.join()) complaints.push(`${name} came back with ${got.length} lines`)
  }

  async #later<T>(path: string): Promise<T | null> {
    await setTimeout(POLL_MS)
    return await this.#json<T>('GET', path)
  }

  async #json<T>(method: string, path: string, body?: FormData | object): Promise<T | null> {
    const text = await this.#call(method, path, body)
    return text === null ? null : (JSON.parse(text) as T)
  }

  /** Null when the call was lost or refused. */
  async #call(method: string, path: string, body?: FormData | object): Promise<string | null> {
    const url = await this.#balancer.pick()
    this.#report.calls++
    try {
      return await callApi({ url, key: this.#key }, method, path, body)
    } catch (error) {
      const cause = error instanceof Error ? error.cause : undefined
      this.#report.complaints.push(`${method} ${path}: ${error} (${cause})`)
      return null
    }
  }
}

if (import.meta.main) {
  const rounds = Number(process.argv[2] ?? 3)
  const print = (what: string, report: RollingReport): void => {
    process.stdout.write(`${what}: ${JSON.stringify(report, null, 2)}\n`)
    if (report.complaints.length > 0) process.exitCode = 1
  }
  print('SQLite and a folder', await rollingRestart(['serve'], { yaml: '', env: {} }, rounds))
  if (withoutPostgres) process.stdout.write(`${withoutPostgres}\n`)
  else {
    await using storage = await sharedStorage()
    const fleet = ['api', 'api', 'worker', 'worker'] as const
    print('PostgreSQL and a bucket', await rollingRestart(fleet, await storage.make(), rounds))
  }
}
