// Many machines, as far as one can play them: real processes, each with a folder of its own, that share nothing
// but a PostgreSQL and a bucket. Workers crash and are suspended, every line is answered and billed once.
import assert from 'node:assert/strict'
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync } from 'node:fs'
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { after, before, describe, it } from 'node:test'
import { setTimeout as wait } from 'node:timers/promises'
import { withoutPostgres } from '../fakes/postgres-server.ts'
import { type SharedStorage, sharedStorage } from '../fakes/shared-storage.ts'
import { type Call, echo, type TestUpstream, testUpstream } from '../fakes/upstream.ts'
import { line, type WireBatch, type WireFile, type WireLine } from '../service.ts'
import { askApi, callApi, parsedLines, uploadForm } from '../support/api.ts'
import { cleanEnv, OFFPEAK } from '../support/offpeak-process.ts'

const LEASE_MS = 1_000
const LINE_NANOS = 3_000

describe('many processes on one PostgreSQL and one bucket', {
  skip: withoutPostgres,
  timeout: 110_000,
}, () => {
  let storage: SharedStorage
  let upstream: TestUpstream
  let folder: string
  let yaml: string
  let env: NodeJS.ProcessEnv
  let key: string
  const apis: { url: string }[] = []
  const running = new Set<ChildProcess>()

  before(async () => {
    storage = await sharedStorage()
    upstream = await testUpstream()
    folder = await mkdtemp(join(tmpdir(), 'offpeak-processes-'))
    const made = await storage.make('empty')
    yaml = `${made.yaml}
models:
  - id: m
    price: {input_per_mtok: 0.10, output_per_mtok: 0.40}
    upstreams: [{type: openai, base_url: "${upstream.base_url}", timeout: 30s, concurrency_max: 16}]
worker: {flush_interval: 20ms, lease: ${LEASE_MS}ms, drain: 200ms}
rate_limit: {requests_per_minute: 100000}
log: {level: error}
`
    env = cleanEnv(made.env)
    const started = await Promise.all([start('api', 'api-1'), start('api', 'api-2')])
    apis.push(...started.map(({ ready }) => ({ url: ready.replace('offpeak listening on ', '') })))
    // Of two that start at once, one makes the first key, or each makes one of its own.
    const madeBy = ['api-1', 'api-2'].find((name) => existsSync(join(folder, name, 'api-key')))
    key = (await readFile(join(folder, madeBy ?? 'api-1', 'api-key'), 'utf8')).trim()
  })

  after(async () => {
    await Promise.all([...running].map((child) => kill(child)))
    await upstream.close()
    await storage[Symbol.asyncDispose]()
    await rm(folder, { recursive: true, force: true })
  })

  it('two APIs and two workers run one batch together, each line once', async () => {
    const workers = await Promise.all([start('worker', 'a'), start('worker', 'b')])
    const file = await upload(0, 'shared', 3_000)
    const order = { input_file_id: file.id, endpoint: '/v1/chat/completions', completion_window: '24h' }
    const headers = { 'idempotency-key': 'job-1' }
    const answers = await Promise.all([0, 1, 0, 1].map((api) => post(api, '/v1/batches', order, headers)))
    // One of them did it. The others were told so, or that it was being done just now.
    const bodies = await Promise.all(answers.map(async (answer) => (await answer.json()) as WireBatch))
    const ids = new Set(bodies.filter((_, i) => answers[i]!.status === 200).map((body) => body.id))
    assert.equal(ids.size, 1)
    assert.ok(answers.every(({ status }) => status === 200 || status === 409))
    assert.equal(
      answers.filter((answer) => answer.ok && !answer.headers.has('idempotency-replayed')).length,
      1,
    )
    const batch = await ended(1, [...ids][0]!)
    assert.equal(batch.status, 'completed')
    assert.deepEqual(batch.request_counts, { total: 3_000, completed: 3_000, failed: 0 })
    assert.equal(Math.round(batch.cost_usd * 1e9), 3_000 * LINE_NANOS)
    assert.deepEqual(await resultIds(0, batch), customIds('shared', 3_000))
    assert.equal(sent('shared').length, 3_000)
    await Promise.all(workers.map(({ child }) => kill(child)))
  })

  it('the chunks of a killed worker are finished by another, and nothing is billed twice', async () => {
    const held: Call[] = []
    upstream.reply = (call) => {
      if (held.length < 10) held.push(call)
      else echo(call)
    }
    const crashed = await start('worker', 'c')
    const file = await upload(0, 'killed', 500)
    const { id } = await create(0, file)
    await until(async () => held.length === 10 && (await get(0, id)).request_counts.completed > 0)
    await kill(crashed.child)
    const before = (await get(1, id)).request_counts.completed
    upstream.reply = echo
    const successor = await start('worker', 'd')
    const batch = await ended(1, id)
    assert.equal(batch.status, 'completed')
    assert.deepEqual(batch.request_counts, { total: 500, completed: 500, failed: 0 })
    assert.equal(Math.round(batch.cost_usd * 1e9), 500 * LINE_NANOS)
    assert.deepEqual(await resultIds(1, batch), customIds('killed', 500))
    // Sent again is at most what was in flight or not yet committed when the worker crashed; committed lines never are.
    assert.ok(
      sent('killed').length <= 500 + (500 - before),
      `${sent('killed').length} calls, ${before} committed`,
    )
    assert.equal(new Set(sent('killed')).size, 500)
    await kill(successor.child)
  })

  it('a worker that was suspended beyond its lease is fenced when it resumes, and continues', async () => {
    const held: Call[] = []
    upstream.reply = (call) => {
      held.push(call)
    }
    const frozen = await start('worker', 'e')
    const file = await upload(0, 'frozen', 40)
    const { id } = await create(0, file)
    await until(async () => held.length >= 16)
    frozen.child.kill('SIGSTOP')
    upstream.reply = echo
    // The answers wait for it in its sockets.
    for (const call of held) echo(call)
    const successor = await start('worker', 'f')
    const batch = await ended(0, id)
    assert.deepEqual(batch.request_counts, { total: 40, completed: 40, failed: 0 })
    frozen.child.kill('SIGCONT')
    await kill(successor.child)
    // It opens a new session and takes up work again.
    const next = await upload(1, 'thawed', 5)
    const after = await ended(1, (await create(1, next)).id)
    assert.deepEqual(after.request_counts, { total: 5, completed: 5, failed: 0 })
    const unchanged = await get(0, id)
    assert.deepEqual(unchanged, batch)
    assert.equal(Math.round(unchanged.cost_usd * 1e9), 40 * LINE_NANOS)
    assert.deepEqual(await resultIds(0, batch), customIds('frozen', 40))
    assert.equal(sent('frozen').length, 16 + 40)
    await kill(frozen.child)
  })

  it('the database may crash and come back under load', async () => {
    const worker = await start('worker', 'g')
    const file = await upload(0, 'crashed', 2_000)
    const { id } = await create(0, file)
    await until(async () => sent('crashed').length > 100)
    await storage.postgres.kill()
    await storage.postgres.start()
    const batch = await ended(1, id)
    assert.equal(batch.status, 'completed')
    assert.deepEqual(batch.request_counts, { total: 2_000, completed: 2_000, failed: 0 })
    assert.equal(Math.round(batch.cost_usd * 1e9), 2_000 * LINE_NANOS)
    assert.deepEqual(await resultIds(1, batch), customIds('crashed', 2_000))
    await kill(worker.child)
  })

  it('a process without the master key of the others is not started', async () => {
    const { OFFPEAK_MASTER_KEY: _, ...without } = env
    const child = run('worker', 'stranger', without)
    child.stderr!.setEncoding('utf8')
    let said = ''
    child.stderr!.on('data', (piece: string) => {
      said += piece
    })
    const [code] = await once(child, 'close')
    assert.notEqual(code, 0)
    assert.match(said, /OFFPEAK_MASTER_KEY/)
  })

  function run(role: 'api' | 'worker', name: string, variables = env): ChildProcess {
    const config = join(folder, 'offpeak.yaml')
    const args = [OFFPEAK, role, '--config', config, '--data', join(folder, name)]
    if (role === 'api') args.push('--port', '0')
    const child = spawn(process.execPath, args, { env: variables, stdio: ['ignore', 'pipe', 'pipe'] })
    running.add(child)
    child.once('exit', () => running.delete(child))
    return child
  }

  async function start(
    role: 'api' | 'worker',
    name: string,
  ): Promise<{ child: ChildProcess; ready: string }> {
    await writeFile(join(folder, 'offpeak.yaml'), yaml)
    const child = run(role, name)
    const said: string[] = []
    createInterface({ input: child.stderr! }).on('line', (text) => said.push(text))
    const lines = createInterface({ input: child.stdout! })
    const ready = await Promise.race([
      once(lines, 'line').then(([text]) => String(text)),
      once(child, 'exit').then(() => {
        throw new Error(`${role} ${name} ended:\n${said.join('\n')}`)
      }),
    ])
    return { child, ready }
  }

  async function post(
    api: number,
    path: string,
    body: FormData | object,
    headers: Record<string, string> = {},
  ): Promise<Response> {
    return await askApi({ url: apis[api]!.url, key }, 'POST', path, body, { headers })
  }

  async function text(api: number, path: string): Promise<string> {
    return await callApi({ url: apis[api]!.url, key }, 'GET', path)
  }

  async function get(api: number, id: string): Promise<WireBatch> {
    return JSON.parse(await text(api, `/v1/batches/${id}`)) as WireBatch
  }

  async function upload(api: number, name: string, lines: number): Promise<WireFile> {
    const form = uploadForm(customIds(name, lines).map((id) => line(id)))
    const { id } = (await (await post(api, '/v1/files', form)).json()) as WireFile
    const file = async (): Promise<WireFile> => JSON.parse(await text(api, `/v1/files/${id}`)) as WireFile
    await until(async () => (await file()).status !== 'pending')
    return await file()
  }

  async function create(api: number, file: WireFile): Promise<WireBatch> {
    const order = { input_file_id: file.id, endpoint: '/v1/chat/completions', completion_window: '24h' }
    return (await (await post(api, '/v1/batches', order)).json()) as WireBatch
  }

  async function ended(api: number, id: string): Promise<WireBatch> {
    await until(async () =>
      ['completed', 'failed', 'expired', 'cancelled'].includes((await get(api, id)).status),
    )
    return await get(api, id)
  }

  async function resultIds(api: number, batch: WireBatch): Promise<string[]> {
    const results = await text(api, `/v1/files/${batch.output_file_id}/content`)
    return parsedLines<WireLine>(results).map(({ custom_id }) => custom_id)
  }

  function sent(name: string): string[] {
    return upstream.calls
      .map(({ body }) => body.messages[0]?.content ?? '')
      .filter((text) => text.startsWith(`${name}-`))
  }
})

function customIds(name: string, count: number): string[] {
  return Array.from({ length: count }, (_, i) => `${name}-${i}`)
}

async function kill(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return
  child.kill('SIGKILL')
  await once(child, 'exit')
}

/** Other processes tell nobody what they are doing: asked again, now and then. */
async function until(done: () => Promise<boolean>): Promise<void> {
  while (!(await done())) await wait(25)
}
