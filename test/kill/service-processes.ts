// The processes of a crash run: started, killed and started again on one folder and one port. Whatever ends
// without having been killed is told, for that is a fault.
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { createWriteStream, type WriteStream } from 'node:fs'
import { createServer } from 'node:net'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import { childrenOf, killIfThere } from '../support/crash-processes.ts'

/** As its users start it: what was compiled once is kept. */
const MAIN = fileURLToPath(new URL('../../bin/offpeak.js', import.meta.url))
/** A start that takes longer is no start. */
export const READY_MS_MAX = 15_000
/** `serve` gives up when its worker crashes too often; the supervisor restarts it. */
const GAVE_UP = /the worker process exited with .* within a minute/

export interface ServiceProcess {
  role: 'serve' | 'api' | 'worker'
  child: ChildProcess
  ended: Promise<unknown>
  /** Resolves when it has said that it is ready, rejects when it ends before. */
  ready: Promise<void>
}

export interface ServiceProcessesOptions {
  folder: string
  env: NodeJS.ProcessEnv
  port: number
  /** A lease ran out under a worker that lives: what it had in flight is sent again. */
  onLeaseLost: (at: number) => void
  /** A process ended by itself. */
  onFault: (problem: string) => void
}

export class ServiceProcesses {
  readonly running = new Set<ServiceProcess>()
  /** How often `serve` has ended by itself because its worker had been killed too often. */
  gave_up = 0
  readonly #options: ServiceProcessesOptions
  readonly #log: WriteStream
  readonly #killed = new WeakSet<ServiceProcess>()
  readonly #onExit = (): void => {
    for (const { child } of this.running) if (child.pid !== undefined) killGroup(child.pid)
  }

  constructor(options: ServiceProcessesOptions) {
    this.#options = options
    this.#log = createWriteStream(join(options.folder, 'service.log'), { flags: 'a' })
    process.on('exit', this.#onExit)
  }

  launch(role: ServiceProcess['role']): ServiceProcess {
    const { folder, env, port } = this.#options
    const listening = role === 'worker' ? [] : ['--port', String(port)]
    const child = spawn(process.execPath, [MAIN, role, '--config', 'offpeak.yaml', ...listening], {
      cwd: folder,
      env,
      // A group of its own, so that it can be killed with its worker.
      detached: true,
      stdio: ['ignore', 'pipe', 'pipe'],
    })
    const said = once(createInterface({ input: child.stdout! }), 'line')
    const ended = once(child, 'exit')
    const ready = Promise.race([
      said.then(() => {}),
      ended.then(() => Promise.reject(new Error(`${role} ended before it was ready`))),
    ])
    ready.catch(() => {})
    const serviceProcess = { role, child, ended, ready }
    this.running.add(serviceProcess)
    let tail: string[] = []
    createInterface({ input: child.stderr! }).on('line', (line) => {
      tail = [...tail.slice(-20), line]
      this.#log.write(`${line}\n`)
      if (line.includes('worker lease expired before it was renewed')) this.#options.onLeaseLost(Date.now())
    })
    child.once('exit', () => this.running.delete(serviceProcess))
    // Its streams stay open as long as a worker of its own lives on.
    void once(child, 'close').then(([code, signal]) => {
      if (this.#killed.has(serviceProcess)) return
      if (role === 'serve' && tail.some((line) => GAVE_UP.test(line))) {
        this.gave_up++
        this.launch(role)
      } else this.#options.onFault(`${role} ended by itself with ${signal ?? code}:\n${tail.join('\n')}`)
    })
    return serviceProcess
  }

  /** SIGKILL, to its own worker as well if `whole`; resolves when it has gone. */
  async kill(serviceProcess: ServiceProcess, whole: boolean): Promise<void> {
    this.#killed.add(serviceProcess)
    const { pid } = serviceProcess.child
    if (pid === undefined) return
    if (whole) killGroup(pid)
    else killIfThere(pid)
    await serviceProcess.ended
  }

  /** SIGKILL to the worker that a `serve` has started; false when it has none just now. */
  killWorkerOf(serviceProcess: ServiceProcess): boolean {
    const [worker] = childrenOf(serviceProcess.child)
    if (worker !== undefined) killIfThere(worker)
    return worker !== undefined
  }

  /** In order; resolves with how long it took and whether every process said that all went well. */
  async stop(): Promise<{ ms: number; codes: (number | null)[] }> {
    const begun = performance.now()
    const codes = await Promise.all(
      [...this.running].map(async (serviceProcess) => {
        this.#killed.add(serviceProcess)
        serviceProcess.child.kill('SIGTERM')
        await serviceProcess.ended
        return serviceProcess.child.exitCode
      }),
    )
    return { ms: performance.now() - begun, codes }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all([...this.running].map((serviceProcess) => this.kill(serviceProcess, true)))
    process.off('exit', this.#onExit)
    this.#log.end()
  }
}

function killGroup(pid: number): void {
  try {
    process.kill(-pid, 'SIGKILL')
  } catch (error) {
    if (!(error instanceof Error && 'code' in error && error.code === 'ESRCH')) throw error
  }
}

export async function freePort(): Promise<number> {
  const probe = createServer().listen(0, '127.0.0.1')
  await once(probe, 'listening')
  const address = probe.address()
  probe.close()
  await once(probe, 'close')
  if (address === null || typeof address === 'string') throw new Error('no port was given')
  return address.port
}
