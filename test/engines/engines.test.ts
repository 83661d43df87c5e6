// Managed servers in the whole service: real processes, started by a real worker.
import assert from 'node:assert/strict'
import { existsSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { fileURLToPath } from 'node:url'
import type { Log } from '../../src/domain/log.ts'
import { testUpstream } from '../fakes/upstream.ts'
import { line, TestService } from '../service.ts'
import { isAlive, until } from '../support/offpeak-process.ts'

const SERVER = fileURLToPath(new URL('../fakes/engine-server.ts', import.meta.url))

function collectingLog(): Log & { entries: string[] } {
  const entries: string[] = []
  const add = (fields: object, text?: string) => void entries.push(JSON.stringify({ ...fields, text }))
  return { entries, info: add, warn: add, error: add }
}

class EngineTest implements AsyncDisposable {
  readonly folder: string
  readonly log: string
  readonly gate: string

  private constructor(folder: string) {
    this.folder = folder
    this.log = join(folder, 'engine.log')
    this.gate = join(folder, 'loaded')
  }

  static async begin(): Promise<EngineTest> {
    return new EngineTest(await mkdtemp(join(tmpdir(), 'offpeak-engine-')))
  }

  /** An upstream with an engine; `ways`: how the server starts, `more`: further keys. */
  upstream(ways: string, more = '', gate = '', place = '{port}'): string {
    const command = JSON.stringify([process.execPath, SERVER, place, ...ways.split(' ').filter(Boolean)])
    const env = `{ENGINE_KEY: "{api_key}", ENGINE_LOG: "${this.log}", GATE: "${gate}"}`
    return `{type: openai, timeout: 5s, engine: {command: ${command}, env: ${env} ${more}}}`
  }

  yaml(upstream: string): string {
    return `
models: [{id: m, price: {input_per_mtok: 0.10, output_per_mtok: 0.40}, upstreams: [${upstream}]}]
retry: {attempts_max: 3, backoff_min: 5ms, backoff_max: 20ms, outage_patience: 0ms}
worker: {flush_interval: 20ms, lease: 2s}`
  }

  notes(kind: string): string[] {
    if (!existsSync(this.log)) return []
    const lines = readFileSync(this.log, 'utf8').split('\n')
    return lines.filter((one) => one.startsWith(`${kind} `)).map((one) => one.slice(kind.length + 1))
  }

  pids(): number[] {
    return [...this.notes('start'), ...this.notes('child')].map((text) => Number.parseInt(text, 10))
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await rm(this.folder, { recursive: true, force: true })
  }
}

test('a server starts when lines wait, gets them byte for byte, and nothing of it outlives the worker', async () => {
  await using engine = await EngineTest.begin()
  const text =
    '{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{ "messages":[{"content":"ü","role":"user"}],"seed":12345678901234567890, "model":"m"}}'
  {
    await using service = await TestService.start(engine.yaml(engine.upstream('child')))
    assert.deepEqual(engine.notes('start'), [])
    const batch = await service.run(text)
    assert.deepEqual(batch.request_counts, { total: 1, completed: 1, failed: 0 })
    assert.ok(text.includes(engine.notes('request')[0]!))
    assert.equal(engine.notes('start').length, 1)
    assert.ok(engine.pids().every(isAlive))
  }
  assert.equal(engine.pids().length, 2)
  assert.ok(!engine.pids().some(isAlive))
})

test('a crash in the middle of a batch costs no line its answer', async () => {
  await using engine = await EngineTest.begin()
  await using service = await TestService.start(engine.yaml(engine.upstream('')))
  const batch = await service.run([line('a'), line('b', 'crash-once'), line('c')])
  assert.deepEqual(batch.request_counts, { total: 3, completed: 3, failed: 0 })
  assert.equal(engine.notes('start').length, 2)
})

test('a line that crashes its server every time ends, and others are answered', async () => {
  await using engine = await EngineTest.begin()
  await using service = await TestService.start(engine.yaml(engine.upstream('')))
  const batch = await service.run([line('a', 'crash'), line('b')])
  assert.deepEqual(batch.request_counts, { total: 2, completed: 1, failed: 1 })
})

test('a batch says that its server is starting, and a server that is idle stops', async () => {
  await using engine = await EngineTest.begin()
  const upstream = engine.upstream('', ', idle_timeout: 0s', engine.gate)
  await using service = await TestService.start(engine.yaml(upstream))
  const file = await service.upload(JSON.stringify(line('a')))
  const { id } = await service.create(file.id)
  const reason = async (): Promise<{ code: string; message: string } | null> =>
    (await service.get(id)).waiting_reason as { code: string; message: string } | null
  await until(async () => (await reason())?.message.includes('is starting') === true)
  assert.deepEqual(await reason(), {
    ...(await reason()),
    code: 'engine_starting',
    message: 'The server of the model m is starting.',
  })
  writeFileSync(engine.gate, '')
  await service.ended(id)
  await until(() => !engine.pids().some(isAlive))
  assert.deepEqual((await service.run([line('b')])).request_counts, { total: 1, completed: 1, failed: 0 })
  assert.equal(engine.notes('start').length, 2)
})

test('a server whose model a reload removes, and another one brings back, answers its lines', {
  timeout: 20_000,
}, async () => {
  await using engine = await EngineTest.begin()
  await using service = await TestService.start(engine.yaml(engine.upstream('')))
  await service.run([line('a')])
  service.reload({ ...service.config, models: [] })
  await until(() => !engine.pids().some(isAlive))
  service.reload(service.config)
  assert.deepEqual((await service.run([line('b')])).request_counts, { total: 1, completed: 1, failed: 0 })
})

test('each upstream of a server has its own timeout, also the one of a reload', {
  timeout: 20_000,
}, async () => {
  await using engine = await EngineTest.begin()
  const upstream = engine.upstream('')
  const other = `models: [{id: other, upstreams: [${upstream.replace('5s', '150ms')}]}, `
  await using service = await TestService.start(engine.yaml(upstream).replace('models: [', other))
  const timeoutOf = async (model: string): Promise<string | undefined> => {
    const batch = await service.run([line('a', 'hang', { model })])
    const [failed] = await service.lines(batch.error_file_id)
    return /[0-9]+ ms/.exec(failed?.error?.message ?? '')?.[0]
  }
  await service.run([line('a')])
  assert.equal(await timeoutOf('other'), '150 ms')
  const models = service.config.models.map((one) => ({
    ...one,
    upstreams: one.upstreams.map((upstream) => ({ ...upstream, timeout_ms: 120 })),
  }))
  service.reload({ ...service.config, models: models as typeof service.config.models })
  assert.equal(await timeoutOf('m'), '120 ms')
  assert.equal(engine.notes('start').length, 1)
})

test('a server of two models stops when it is idle, though lines of one waited as a reload removed it', {
  timeout: 20_000,
}, async () => {
  await using engine = await EngineTest.begin()
  const upstream = engine.upstream('', ', idle_timeout: 0s', engine.gate)
  const other = `models: [{id: other, upstreams: [${upstream}]}, `
  await using service = await TestService.start(engine.yaml(upstream).replace('models: [', other))
  const file = await service.upload(JSON.stringify(line('a')))
  const { id } = await service.create(file.id)
  await until(() => engine.notes('start').length === 1)
  const { models } = service.config
  service.reload({ ...service.config, models: models.filter(({ model }) => model.id === 'other') })
  const batch = await service.ended(id)
  assert.deepEqual(batch.request_counts, { total: 1, completed: 0, failed: 1 })
  writeFileSync(engine.gate, '')
  await until(() => !engine.pids().some(isAlive))
})

test('lines of a server that cannot start fail with the kind of its last words, which are in its file', async () => {
  await using engine = await EngineTest.begin()
  const log = collectingLog()
  await using service = await TestService.start(engine.yaml(engine.upstream('fail')), { log })
  const batch = await service.run([line('a')])
  const [failed] = await service.lines(batch.error_file_id)
  assert.equal(failed?.error?.code, 'upstream_unavailable')
  assert.match(failed.error.message, /exited with 1 \(model not found\)/)
  assert.doesNotMatch(failed.error.message, /the key|\.log/)
  const file = join(service.config.data_dir, 'engines', 'node-m.log')
  assert.match(readFileSync(file, 'utf8'), /no such model; the key is/)
  assert.ok(log.entries.some((entry) => entry.includes('"how":"exited with 1 (model not found)"')))
  assert.ok(log.entries.some((entry) => entry.includes(file)))
  assert.doesNotMatch(log.entries.join('\n'), /the key is|loading the model/)
})

test('what a server prints of lines is in its own file, which only its user may read', async () => {
  await using engine = await EngineTest.begin()
  const log = collectingLog()
  await using service = await TestService.start(engine.yaml(engine.upstream('')), { log })
  await service.run([line('a', 'scarlet fever'), line('b', 'crash-once')])
  const file = join(service.config.data_dir, 'engines', 'node-m.log')
  assert.match(readFileSync(file, 'utf8'), /asked: .*scarlet fever/)
  assert.equal(statSync(file).mode & 0o777, 0o600)
  assert.equal(statSync(join(file, '..')).mode & 0o777, 0o700)
  assert.doesNotMatch(log.entries.join('\n'), /scarlet/)
})

test('a server whose port another process takes while it loads gets its lines by the next one', {
  skip: !existsSync('/proc/net/tcp'),
}, async () => {
  await using engine = await EngineTest.begin()
  const yaml = engine.yaml(engine.upstream('late', '', engine.gate))
  await using service = await TestService.start(yaml.replace('outage_patience: 0ms', 'outage_patience: 1m'))
  const file = await service.upload(JSON.stringify(line('a', 'scarlet fever')))
  const { id } = await service.create(file.id)
  await until(() => engine.notes('place').length === 1)
  await using thief = await testUpstream(undefined, Number(engine.notes('place')[0]))
  // Healthy at once, and with an answer to everything.
  thief.models = {}
  let got = ''
  thief.server.on('connection', (socket) => socket.on('data', (piece) => (got += piece)))
  await Promise.race([service.ended(id), until(() => engine.notes('place').length === 2)])
  writeFileSync(engine.gate, '')
  const batch = await service.ended(id)
  assert.deepEqual(batch.request_counts, { total: 1, completed: 1, failed: 0 })
  assert.equal(got, '')
  assert.notEqual(engine.notes('place')[1], engine.notes('place')[0])
})

test('a server that listens on a socket is reached there, in a folder that is closed and goes with it', async () => {
  await using engine = await EngineTest.begin()
  let folder = ''
  {
    await using service = await TestService.start(engine.yaml(engine.upstream('', '', '', '{socket}')))
    const batch = await service.run([line('a')])
    assert.deepEqual(batch.request_counts, { total: 1, completed: 1, failed: 0 })
    folder = join(engine.notes('place')[0] ?? '', '..')
    assert.equal(statSync(folder).mode & 0o777, 0o700)
  }
  assert.ok(!existsSync(folder))
})

for (const place of ['{port}', '{socket}'])
  test(`a server with a ${place} that says it works on all lines gets more before its first answer`, async () => {
    await using engine = await EngineTest.begin()
    await using service = await TestService.start(engine.yaml(engine.upstream('', '', '', place)))
    const batch = await service.run(Array.from({ length: 40 }, (_, i) => line(`l${i}`, 'together')))
    assert.deepEqual(batch.request_counts, { total: 40, completed: 40, failed: 0 })
  })

test('a server gets what it needs of the environment, and no credential that is not named', async () => {
  await using engine = await EngineTest.begin()
  const secrets = [
    'AWS_SECRET_ACCESS_KEY',
    'HF_TOKEN',
    'OPENAI_API_KEY',
    'VLLM_API_KEY',
    'GITHUB_TOKEN',
    'MY_SETTING',
  ]
  const given = {
    ...Object.fromEntries(secrets.map((name) => [name, 'x'])),
    CUDA_CACHE_PATH: '/c',
    HF_HOME: '/h',
  }
  const before = { ...process.env }
  Object.assign(process.env, given)
  try {
    const more = ', pass_env: [GITHUB_TOKEN], files: {"a.yaml": "key: {api_key}\\n"}'
    await using service = await TestService.start(engine.yaml(engine.upstream('{files}', more)))
    await service.run([line('a')])
  } finally {
    for (const name of Object.keys(given)) delete process.env[name]
    Object.assign(process.env, before)
  }
  const names = engine.notes('env')[0]?.split(' ') ?? []
  for (const name of ['PATH', 'HOME', 'CUDA_CACHE_PATH', 'HF_HOME', 'GITHUB_TOKEN', 'ENGINE_KEY'])
    assert.ok(names.includes(name), name)
  for (const name of secrets.filter((one) => one !== 'GITHUB_TOKEN')) assert.ok(!names.includes(name), name)
})

test('a program that is not there is named', async () => {
  await using service = await TestService.start(`
models: [{id: m, upstreams: [{type: openai, engine: {command: [no-such-server, "{port}"]}}]}]
retry: {attempts_max: 2, backoff_min: 5ms, backoff_max: 20ms, outage_patience: 0ms}`)
  const batch = await service.run([line('a')])
  const [failed] = await service.lines(batch.error_file_id)
  assert.match(failed?.error?.message ?? '', /there is no program no-such-server on the PATH/)
})
