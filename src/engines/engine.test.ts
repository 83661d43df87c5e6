// Tests the states of an engine, with processes and a clock that the test controls.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setImmediate } from 'node:timers/promises'
import { testClock } from '../../test/fakes/clock.ts'
import { sendTo } from '../../test/fakes/scripted-backend.ts'
import { type Backend, type BackendCall, type BackendResult, settle } from '../backends/backend.ts'
import { Engine } from './engine.ts'
import type { EngineOrder } from './engine-process.ts'
import { Machine } from './machine.ts'

const LANE = {}
const CALL: BackendCall = { endpoint: '/v1/chat/completions', body: new Uint8Array(), project_id: 'p' }
const ANSWERED: BackendResult = { kind: 'refused', status: 400, code: 'upstream_rejected', message: 'ok' }
const BROKEN: BackendResult = {
  kind: 'failed',
  status: null,
  code: 'upstream_unavailable',
  reason: 'the connection broke',
}

class FakeProcess {
  readonly pid = 1
  readonly tag = 't'
  readonly order: EngineOrder
  readonly exited: Promise<string>
  isStopped = false
  #end: (how: string) => void = () => {}

  constructor(order: EngineOrder) {
    this.order = order
    this.exited = new Promise((resolve) => {
      this.#end = resolve
    })
  }

  exit(how: string): void {
    this.#end(how)
  }

  async stop(): Promise<void> {
    this.isStopped = true
    this.#end('was killed by SIGTERM')
  }
}

function begin(limits: { start_timeout_ms?: number; idle_timeout_ms?: number; starts_max?: number } = {}) {
  const clock = testClock()
  const machine = new Machine({ gpus: ['0'], memory_bytes: 100, run_ms_min: 60_000 }, clock)
  const processes: FakeProcess[] = []
  /** An output file that cannot be written. */
  const output = '/dev/null/a.log'
  const state = { healthy: false, taken: false, send: async (): Promise<BackendResult> => ANSWERED }
  const spec = {
    command: ['serve', '--port', '{port}', '--name', '{model}'],
    ready: '/health',
    env: { KEY: '{api_key}' },
    pass_env: [],
    files: {},
    gpus: 1,
    memory_bytes: 0,
    start_timeout_ms: 10_000,
    idle_timeout_ms: 30_000,
    ...limits,
  }
  const make = (name: string): Engine =>
    new Engine({
      name,
      model: 'm',
      spec,
      machine,
      clock,
      log: { info() {}, warn() {}, error() {} },
      launch: (order, engineOutput) => {
        void engineOutput.write(Buffer.from(`loading with ${order.env.KEY}\nCUDA out of memory\n`))
        processes.push(new FakeProcess(order))
        return processes.at(-1)!
      },
      output,
      newPlace: async () => ({ port: 4321, folder: null }),
      accessTo: () => ({
        base_url: '',
        socket: null,
        isOwn: async () => !state.taken,
        state: async () => (state.taken ? 'taken' : state.healthy ? 'ready' : 'starting'),
      }),
    })
  const engine = make('a')
  const client: Backend = {
    name: 'a',
    send: (_, done) => settle(state.send(), done),
    close: async () => {},
  }
  const backend = engine.backend(() => client)
  const send = (call: BackendCall): Promise<BackendResult> => sendTo(backend, call)
  const wants = (waiting: number, of = engine, atRisk = false): void =>
    of.update(LANE, { waiting, atRisk, deadline: Number.POSITIVE_INFINITY })
  /** Advances the clock, while the worker reports once a second how many lines wait. */
  const pass = async (ms: number, waiting: number): Promise<void> => {
    for (let left = ms; left > 0; left -= 1000) {
      await clock.advance(Math.min(left, 1000))
      wants(waiting)
    }
    await setImmediate()
  }
  return { clock, machine, engine, send, make, processes, state, wants, pass, output }
}

test('it starts when a line waits, with its port, model, key and GPU, and is ready within a poll', async () => {
  const { engine, send, processes, state, wants, clock } = begin()
  assert.equal(engine.state, 'stopped')
  wants(0)
  assert.equal(processes.length, 0)
  wants(1)
  await clock.advance(0)
  assert.equal(engine.isAvailable, false)
  const { command, env } = processes[0]!.order
  assert.deepEqual(command, ['serve', '--port', '4321', '--name', 'm'])
  assert.ok((env.KEY ?? '').length >= 32)
  assert.equal(env.CUDA_VISIBLE_DEVICES, '0')
  assert.equal(engine.waitingReason?.text, 'is starting.')
  state.healthy = true
  await clock.advance(50)
  assert.equal(engine.state, 'ready')
  assert.equal(engine.waitingReason, null)
  assert.equal(await send(CALL), ANSWERED)
})

test('one that is to be started a few times only lets its lines fail then, with the kind of its last words', async () => {
  const { engine, send, processes, pass } = begin({ starts_max: 2 })
  await pass(1_000, 1)
  processes[0]!.exit('exited with 1')
  await pass(2_000, 1)
  processes[1]!.exit('exited with 1')
  await pass(60_000, 1)
  assert.equal(processes.length, 2)
  assert.ok(engine.isAvailable)
  const result = await send(CALL)
  assert.ok(result.kind === 'refused' && result.code === 'upstream_unavailable')
  assert.equal(result.message, 'The server a exited with 1 (out of memory); it was started 2 times.')
})

test('one that is not ready in time is killed, and started again after pauses that double', async () => {
  const { engine, send, processes, wants, pass } = begin()
  wants(1)
  await pass(10_000, 1)
  assert.ok(processes[0]?.isStopped)
  assert.equal(engine.state, 'failed')
  const result = await send(CALL)
  assert.ok(result.kind === 'failed' && result.unreachable === true)
  assert.match(result.reason, /was not ready within its start_timeout \(10 s\) \(out of memory\)$/)
  await pass(1_000, 1)
  assert.equal(processes.length, 2)
  processes[1]!.exit('exited with 1')
  await pass(1_000, 1)
  assert.equal(processes.length, 2)
  await pass(1_000, 1)
  assert.equal(processes.length, 3)
})

test('after a crash lines wait for the next start', async () => {
  const { engine, send, processes, state, wants, pass } = begin()
  state.healthy = true
  wants(1)
  await pass(1_000, 1)
  state.send = async () => BROKEN
  assert.equal(await send(CALL), BROKEN)
  assert.equal(engine.isAvailable, false)
  processes[0]!.exit('was killed by SIGKILL')
  await setImmediate()
  assert.equal(engine.state, 'failed')
  assert.equal(engine.isAvailable, false)
  assert.equal(engine.waitingReason?.text, 'was killed by SIGKILL (out of memory); it is started again soon.')
  await pass(1_000, 1)
  assert.equal(engine.state, 'ready')
  assert.equal(processes.length, 2)
})

test('a connection that breaks keeps lines back only until the server answers a health check', async () => {
  const { engine, send, state, wants, pass, clock } = begin()
  state.healthy = true
  wants(1)
  await pass(1_000, 1)
  state.send = async () => BROKEN
  await send(CALL)
  assert.equal(engine.isAvailable, false)
  await clock.advance(200)
  assert.equal(engine.isAvailable, true)
})

test('one that answers neither health checks nor lines is killed and started again', async () => {
  const { engine, processes, state, wants, pass } = begin()
  state.healthy = true
  wants(1)
  await pass(1_000, 1)
  state.healthy = false
  await pass(70_000, 1)
  assert.ok(processes[0]?.isStopped)
  state.healthy = true
  await pass(2_000, 1)
  assert.equal(engine.state, 'ready')
})

test('it stops when it has been idle for its time, and never while a line is in flight', async () => {
  const { engine, send, processes, state, wants, pass } = begin()
  state.healthy = true
  wants(1)
  await pass(1_000, 1)
  const answer = Promise.withResolvers<BackendResult>()
  state.send = () => answer.promise
  const sent = send(CALL)
  await pass(100_000, 0)
  assert.equal(engine.state, 'ready')
  answer.resolve(ANSWERED)
  await sent
  await pass(29_000, 0)
  assert.equal(engine.state, 'ready')
  await pass(2_000, 0)
  assert.equal(engine.state, 'stopped')
  assert.ok(processes[0]?.isStopped)
})

test('one whose room another needs lets lines in flight finish; what is cut off after that counts as throttled', async () => {
  const { engine, send, make, processes, state, wants, pass, clock } = begin()
  state.healthy = true
  wants(5)
  await pass(1_000, 5)
  const answer = Promise.withResolvers<BackendResult>()
  state.send = () => answer.promise
  const sent = send(CALL)
  const other = make('b')
  wants(3, other, true)
  assert.match(other.waitingReason?.text ?? '', /waits for room on the machine, which a uses/)
  await pass(60_000, 5)
  assert.equal(engine.state, 'stopping')
  assert.equal(engine.isAvailable, false)
  assert.equal(processes[0]!.isStopped, false)
  await clock.advance(30_000)
  assert.ok(processes[0]!.isStopped)
  answer.resolve(BROKEN)
  assert.equal((await sent).kind, 'throttled')
  await clock.advance(100)
  assert.equal(other.state, 'ready')
})

test('one that is wanted again while it stops starts again', async () => {
  const { engine, processes, state, wants, pass } = begin()
  state.healthy = true
  wants(1)
  await pass(1_000, 1)
  engine.onChange(() => wants(1))
  await pass(31_000, 0)
  assert.equal(processes.length, 2)
  await pass(1_000, 1)
  assert.equal(engine.state, 'ready')
})

test('nothing is started after it is closed', async () => {
  const { engine, processes, state, wants, pass } = begin()
  state.healthy = true
  wants(1)
  await pass(1_000, 1)
  await engine.close()
  assert.ok(processes[0]?.isStopped)
  await pass(100_000, 1)
  assert.equal(processes.length, 1)
})

test('one that is closed gives its room to another when no process of it is left', async () => {
  const { engine, make, processes, state, wants, pass, clock } = begin()
  state.healthy = true
  wants(1)
  await pass(1_000, 1)
  const ended = Promise.withResolvers<void>()
  processes[0]!.stop = () => ended.promise
  const other = make('b')
  wants(1, other)
  const closed = engine.close()
  await clock.advance(100)
  assert.equal(other.state, 'queued')
  ended.resolve()
  await closed
  await clock.advance(100)
  assert.equal(other.state, 'ready')
})

test('one whose port another process has taken gets no line and is started again, also once it was ready', async () => {
  const { engine, send, processes, state, wants, pass } = begin()
  state.taken = true
  wants(1)
  await pass(1_000, 1)
  assert.ok(processes[0]?.isStopped)
  const result = await send(CALL)
  assert.ok(result.kind === 'failed' && result.unreachable === true)
  assert.match(result.reason, /found its port taken by another process/)
  Object.assign(state, { taken: false, healthy: true })
  await pass(2_000, 1)
  assert.equal(engine.state, 'ready')
  state.taken = true
  await pass(6_000, 1)
  assert.ok(processes[1]?.isStopped)
})
