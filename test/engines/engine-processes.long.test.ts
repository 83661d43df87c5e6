// However the service ends, no process of its engines survives.
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, readFileSync } from 'node:fs'
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { describe, test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { CrashTest } from '../support/crash-processes.ts'
import { childrenOf, cleanEnv, isAlive, killIfThere, OFFPEAK, until } from '../support/offpeak-process.ts'

const SERVER = fileURLToPath(new URL('../fakes/engine-server.ts', import.meta.url))

/** What an engine noted: of its processes, and of what it was asked. */
function notesIn(log: string) {
  const notes = (): string => (existsSync(log) ? readFileSync(log, 'utf8') : '')
  const pids = (): number[] =>
    [...notes().matchAll(/^(?:start|child) (\d+)/gm)].map((found) => Number(found[1]))
  return { notes, pids }
}

/**
 * A service whose engine ignores SIGTERM, has a child in a session of its own, and has been asked something or, with
 * `gate`, is starting.
 */
async function underWay(crash: CrashTest, command: 'serve' | 'worker' = 'serve', gate = '') {
  const log = join(crash.folder, 'engine.log')
  const file = join(crash.folder, 'offpeak.yaml')
  const words = JSON.stringify([process.execPath, SERVER, '{port}', 'stubborn', 'child'])
  const engine = `engine: {command: ${words}, env: {ENGINE_KEY: "{api_key}", ENGINE_LOG: "${log}", GATE: "${gate}"}}`
  const yaml = await readFile(file, 'utf8')
  await writeFile(file, yaml.replace(/base_url: "[^"]*"/, engine))
  const api = await crash.start(command === 'serve' ? 'serve' : 'api')
  const service = command === 'serve' ? api : await crash.start('worker')
  await crash.batchOf(1, 'hang')
  const { notes, pids } = notesIn(log)
  await until(() => (gate === '' ? notes().includes('request') : pids().length === 2))
  assert.ok(pids().length === 2 && pids().every(isAlive))
  return { service, pids }
}

describe('no process of an engine remains', {
  concurrency: 3,
  timeout: 170_000,
  skip: !existsSync('/proc/self/stat'),
}, () => {
  test('after a graceful shutdown', async () => {
    await using crash = await CrashTest.begin('', '200ms')
    const { service, pids } = await underWay(crash)
    await service.end('SIGTERM')
    assert.ok(!pids().some(isAlive))
  })

  test('after Ctrl-C, and after SIGTERM while the engine starts', async () => {
    await using crash = await CrashTest.begin('', '200ms')
    const { service, pids } = await underWay(crash)
    await service.end('SIGINT')
    assert.ok(!pids().some(isAlive))

    await using other = await CrashTest.begin('', '200ms')
    const starting = await underWay(other, 'serve', '/no/such/file')
    await starting.service.end('SIGTERM')
    assert.ok(!starting.pids().some(isAlive))
  })

  test('after SIGKILL of the service, or of everything, while the engine starts', async () => {
    for (const end of ['end', 'endGroup'] as const) {
      await using crash = await CrashTest.begin('', '200ms')
      const { service, pids } = await underWay(crash, 'serve', '/no/such/file')
      await service[end]('SIGKILL')
      await until(() => !pids().some(isAlive))
    }
  })

  test('after a crash of the engine, whose child goes with it', async () => {
    await using crash = await CrashTest.begin('', '200ms')
    const { service, pids } = await underWay(crash)
    const before = pids()
    killIfThere(before[0] ?? 0)
    await until(() => !before.some(isAlive))
    await service.end('SIGTERM')
    assert.ok(!pids().some(isAlive))
  })

  test('after SIGKILL of the service', async () => {
    await using crash = await CrashTest.begin('', '200ms')
    const { service, pids } = await underWay(crash)
    await service.end('SIGKILL')
    await until(() => !pids().some(isAlive))
  })

  test('after SIGKILL of the worker of a service, and of a worker of its own', async () => {
    await using crash = await CrashTest.begin('', '200ms')
    const { service, pids } = await underWay(crash)
    const before = pids()
    for (const worker of childrenOf(service.child)) killIfThere(worker)
    await until(() => !before.some(isAlive))
    await service.end('SIGKILL')
    await until(() => !pids().some(isAlive))

    await using other = await CrashTest.begin('', '200ms')
    const alone = await underWay(other, 'worker')
    await alone.service.end('SIGKILL')
    await until(() => !alone.pids().some(isAlive))
  })

  test('after SIGKILL of everything at once', async () => {
    await using crash = await CrashTest.begin('', '200ms')
    const { service, pids } = await underWay(crash)
    await service.endGroup('SIGKILL')
    await until(() => !pids().some(isAlive))
  })
})

/** `run` with a server of its own that answers, or with `gate` starts for ever. */
async function startRun(content: string, gate = '') {
  const folder = await mkdtemp(join(tmpdir(), 'offpeak-run-engine-'))
  const file = (name: string): string => join(folder, name)
  const log = file('engine.log')
  const body = { model: 'm', messages: [{ role: 'user', content }] }
  await writeFile(
    file('in.jsonl'),
    JSON.stringify({ custom_id: 'a', method: 'POST', url: '/v1/chat/completions', body }),
  )
  // vllm serve m --served-model-name m --uds SOCKET
  const script = `#!/bin/sh
ENGINE_KEY=$VLLM_API_KEY ENGINE_LOG='${log}' GATE='${gate}' exec '${process.execPath}' '${SERVER}' "$6" stubborn child
`
  await writeFile(file('vllm'), script, { mode: 0o755 })
  const child = spawn(
    process.execPath,
    [OFFPEAK, 'run', file('in.jsonl'), '--engine', 'vllm', '--model', 'm', '--data', file('data')],
    { env: cleanEnv({ OFFPEAK_VLLM: file('vllm') }), stdio: 'ignore', detached: true },
  )
  const exited = once(child, 'exit')
  const { notes, pids } = notesIn(log)
  /** The folder of its socket. */
  const place = (): string => dirname(/^place (.*)$/m.exec(notes())?.[1] ?? '')
  return {
    child,
    exited,
    notes,
    pids,
    place,
    answers: () => readFile(file('in.out.jsonl'), 'utf8'),
    async [Symbol.asyncDispose]() {
      child.kill('SIGKILL')
      await exited
      await until(() => !pids().some(isAlive))
      await rm(folder, { recursive: true, force: true })
    },
  }
}

describe('no process of an engine that a run has started remains', {
  concurrency: 2,
  timeout: 90_000,
  skip: !existsSync('/proc/self/stat'),
}, () => {
  test('at its end', async () => {
    await using run = await startRun('hello')
    assert.deepEqual(await run.exited, [0, null])
    assert.match(await run.answers(), /"content":"hello"/)
    assert.equal(run.pids().length, 2)
    assert.ok(!run.pids().some(isAlive))
    assert.ok(!existsSync(run.place()))
  })

  test('after Ctrl-C', async () => {
    await using run = await startRun('hang')
    await until(() => run.notes().includes('request'))
    run.child.kill('SIGINT')
    await run.exited
    assert.ok(!run.pids().some(isAlive))
  })

  test('after SIGKILL, as soon as the engine has been started, and of everything while it is starting', async () => {
    for (const isAtOnce of [true, false]) {
      await using run = await startRun('hello', '/no/such/file')
      await until(() => run.pids().length === 2)
      process.kill(isAtOnce ? (run.child.pid ?? 0) : -(run.child.pid ?? 0), 'SIGKILL')
      await until(() => !run.pids().some(isAlive) && !existsSync(run.place()))
    }
  })
})
