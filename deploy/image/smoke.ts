// smoke.ts ROOT INSPECTED.json: runs the image whose root file system is mounted at ROOT as an orchestrator would, as far
// as namespaces and chroot go: with the image's own command, user and variables, as process 1, on a read-only root file
// system with one volume, without privileges, in a network of its own. Needs root.
import assert from 'node:assert/strict'
import { type ChildProcess, execFileSync, spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { chownSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as wait } from 'node:timers/promises'

interface ImageConfig {
  User: string
  Env: string[]
  Entrypoint: string[]
  Cmd: string[]
  WorkingDir: string
  Volumes: Record<string, object>
  Healthcheck: { Test: string[] }
}

interface Container {
  child: ChildProcess
  /** Process 1, as seen from here. */
  pid: number
  log: () => string
}

const [root = '', inspected = ''] = process.argv.slice(2)
const image: ImageConfig = JSON.parse(readFileSync(inspected, 'utf8')).Docker.config
const [uid = '', gid = ''] = image.User.split(':')
const work = mkdtempSync(join(tmpdir(), 'offpeak-image-'))
const volume = join(work, 'data')
const running = new Set<ChildProcess>()
/** A model that takes long enough for a batch to be interrupted. */
const MODELS = '[{id: sim-1, upstreams: [{type: sim, latency_ms: 100, concurrency_max: 16}]}]'
const READY_WITHIN_MS = 30_000
const STOPPED_WITHIN_MS = 15_000

try {
  await smokeTest()
} finally {
  for (const child of running) child.kill('SIGKILL')
  await Promise.all([...running].map((child) => once(child, 'exit')))
  rmSync(work, { recursive: true, force: true })
}

async function smokeTest(): Promise<void> {
  assert.ok(Number(uid) > 0 && Number(gid) > 0, `the user is "${image.User}", not numbers above 0`)
  assert.deepEqual(Object.keys(image.Volumes), ['/data'])
  mkdirSync(volume, { mode: 0o700 })
  chownSync(volume, Number(uid), Number(gid))
  writeLines('few.jsonl', 50)
  writeLines('many.jsonl', 2_000)
  withoutDevelopmentPackages()

  const service = await start(image.Cmd, [`OFFPEAK_MODELS=${MODELS}`])
  await ready(service)
  passed('the health check succeeds')
  confined(service)
  passed(`process 1 is user ${image.User} without capabilities; only /data and /tmp can be written to`)
  const page = call(service, '/console')
  const script = /src="([^"]+\.js)"/.exec(page)?.[1]
  assert.ok(script !== undefined && call(service, script).length > 0, 'the console has no script')
  passed('the console is served')
  const key = readFileSync(join(volume, 'api-key'), 'utf8').trim()
  const client = ['OFFPEAK_BASE_URL=http://127.0.0.1:8080', `OFFPEAK_API_KEY=${key}`]
  execute(service, client, ['offpeak', 'run', '/data/few.jsonl', '-o', '/data/few.out.jsonl'])
  assert.equal(countLines('few.out.jsonl'), 50)
  passed('offpeak run against the service answers every line')

  const interrupted = ['offpeak', 'run', '/data/many.jsonl', '-o', '/data/many.out.jsonl']
  const run = spawn(...inside(service, client, interrupted), { stdio: 'ignore' })
  running.add(run)
  run.once('exit', () => running.delete(run))
  await until('a batch runs', () => /"status":"in_progress"/.test(call(service, '/v1/batches', key)))
  await stop(service)
  run.kill('SIGKILL')
  passed('SIGTERM during a batch drains and exits with 0')
  const again = await start(image.Cmd, [`OFFPEAK_MODELS=${MODELS}`])
  await ready(again)
  execute(again, client, interrupted)
  assert.equal(countLines('many.out.jsonl'), 2_000)
  assert.equal([...call(again, '/v1/batches', key).matchAll(/"status":"completed"/g)].length, 2)
  passed('the next container finishes the batch')

  // Beside the API, which has the port: the image's health check has to find the worker's.
  await stop(again)
  const worker = await start(['worker'])
  await ready(worker)
  await stop(worker)
  passed('the health check of a worker succeeds, and SIGTERM ends it with 0')

  const alone = await start(['run', '/data/few.jsonl', '-o', '/data/alone.out.jsonl'])
  assert.throws(() => execute(alone, [], image.Healthcheck.Test.slice(1)), 'healthy without a service')
  assert.equal(await ended(alone), 0, alone.log())
  assert.equal(countLines('alone.out.jsonl'), 50)
  passed('offpeak run alone answers every line')
}

function withoutDevelopmentPackages(): void {
  const { devDependencies } = JSON.parse(readFileSync(join(root, 'app/package.json'), 'utf8'))
  const found = Object.keys(devDependencies).filter((name) =>
    existsSync(join(root, 'app/node_modules', name)),
  )
  assert.deepEqual(found, [], 'development packages are in the image')
  assert.ok(!existsSync(join(root, 'app/src')) && !existsSync(join(root, 'root/.npm/_cacache')))
  passed('no development packages, sources or caches')
}

function confined(container: Container): void {
  const status = readFileSync(`/proc/${container.pid}/status`, 'utf8')
  assert.match(status, new RegExp(`^Uid:\t${uid}\t${uid}\t${uid}\t${uid}$`, 'm'))
  for (const set of ['CapPrm', 'CapEff', 'CapAmb']) assert.match(status, new RegExp(`^${set}:\\s0{16}$`, 'm'))
  const find = 'find / -xdev -type d -writable 2> /dev/null || true'
  const folders = execute(container, [], ['sh', '-c', find]).trim().split('\n')
  assert.deepEqual(folders.sort(), ['/data', '/tmp'])
  execute(container, [], ['sh', '-c', 'touch /data/t /tmp/t && rm /data/t /tmp/t'])
  const asRoot = spawnSync('nsenter', [...namespacesOf(container), 'touch', join(root, 'app/t')], {
    encoding: 'utf8',
  })
  assert.match(asRoot.stderr, /Read-only file system/)
}

/** Starts the image with these arguments. */
async function start(args: string[], variables: string[] = []): Promise<Container> {
  const prepare = `
    mount --bind "$1" "$1"
    mount -o remount,bind,ro "$1"
    mount -t proc -o nosuid,nodev,noexec proc "$1/proc"
    mount -t tmpfs -o nosuid,mode=755,size=1m tmpfs "$1/dev"
    for device in null zero random urandom; do
      touch "$1/dev/$device"
      mount --bind "/dev/$device" "$1/dev/$device"
    done
    mount -t tmpfs -o nosuid,nodev,size=64m tmpfs "$1/tmp"
    mount --bind "$2" "$1/data"
    ip link set lo up
    shift 2
    exec "$@"`
  const namespaces = ['--mount', '--pid', '--net', '--ipc', '--uts', '--fork', '--kill-child']
  const command = enter(variables, [...image.Entrypoint, ...args])
  const child = spawn('unshare', [...namespaces, 'sh', '-ec', prepare, 'sh', root, volume, ...command], {
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  running.add(child)
  child.once('exit', () => running.delete(child))
  let log = ''
  for (const stream of [child.stdout, child.stderr])
    stream.setEncoding('utf8').on('data', (text: string) => {
      log = (log + text).slice(-8_000)
    })
  const pid = (): string => readFileSync(`/proc/${child.pid}/task/${child.pid}/children`, 'utf8').trim()
  await until('process 1 starts', () => pid() !== '' && statusOf(pid()).includes(`Uid:\t${uid}\t`))
  return { child, pid: Number(pid()), log: () => log }
}

function statusOf(pid: string): string {
  return readFileSync(`/proc/${pid}/status`, 'utf8')
}

/** The root file system, user, variables and working folder of the image. */
function enter(variables: string[], command: string[]): string[] {
  const environment = ['env', '-i', '-C', image.WorkingDir, ...image.Env, ...variables]
  const confinement = ['setpriv', '--no-new-privs', 'chroot', `--userspec=${uid}:${gid}`, '--groups=', root]
  return [...confinement, ...environment, ...command]
}

function namespacesOf({ pid }: Container): string[] {
  return ['--target', String(pid), '--mount', '--pid', '--net', '--ipc', '--uts', '--']
}

function inside(container: Container, variables: string[], command: string[]): [string, string[]] {
  return ['nsenter', [...namespacesOf(container), ...enter(variables, command)]]
}

function execute(container: Container, variables: string[], command: string[]): string {
  return execFileSync(...inside(container, variables, command), {
    encoding: 'utf8',
    stdio: ['ignore', 'pipe', 'pipe'],
    timeout: 60_000,
  })
}

function call(container: Container, path: string, key = ''): string {
  const script = `const r = await fetch('http://127.0.0.1:8080${path}', { headers: { authorization: 'Bearer ${key}' } })
    if (!r.ok) throw new Error(String(r.status))
    console.log(await r.text())`
  return execute(container, [], ['node', '--input-type=module', '-e', script])
}

async function ready(container: Container): Promise<void> {
  const [kind, ...test] = image.Healthcheck.Test
  assert.equal(kind, 'CMD')
  await until('the health check succeeds', () => {
    assert.equal(container.child.exitCode, null, container.log())
    return spawnSync(...inside(container, [], test)).status === 0
  })
}

async function stop(container: Container): Promise<void> {
  process.kill(container.pid, 'SIGTERM')
  const timer = setTimeout(() => container.child.kill('SIGKILL'), STOPPED_WITHIN_MS)
  const code = await ended(container)
  clearTimeout(timer)
  assert.equal(code, 0, container.log())
}

async function ended({ child }: Container): Promise<number | null> {
  if (running.has(child)) await once(child, 'exit')
  return child.exitCode
}

async function until(what: string, done: () => boolean): Promise<void> {
  for (const end = performance.now() + READY_WITHIN_MS; !done(); await wait(200))
    assert.ok(performance.now() < end, `within ${READY_WITHIN_MS / 1000} s: ${what}`)
}

function writeLines(name: string, count: number): void {
  const lines = Array.from({ length: count }, (_, i) =>
    JSON.stringify({
      custom_id: `line-${i}`,
      method: 'POST',
      url: '/v1/chat/completions',
      body: { model: 'sim-1', messages: [{ role: 'user', content: `Question ${i}` }], max_tokens: 8 },
    }),
  )
  const path = join(volume, name)
  writeFileSync(path, `${lines.join('\n')}\n`)
  chownSync(path, Number(uid), Number(gid))
}

function countLines(name: string): number {
  return readFileSync(join(volume, name), 'utf8').trim().split('\n').length
}

function passed(what: string): void {
  process.stdout.write(`    ok: ${what}\n`)
}
