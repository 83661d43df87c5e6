// The processes of a crash run: started, killed and started again on one folder and one port. Whatever ends
// without having been killed is told, for that is a fault.
import { createWriteStream, type WriteStream } from 'node:fs'
import { join } from 'node:path'
import { childrenOf, killIfThere, OffpeakProcess } from '../support/offpeak-process.ts'

/** A start that takes longer is no start. */
export const READY_MS_MAX = 15_000
/** `serve` gives up when its worker crashes too often; the supervisor restarts it. */
const GAVE_UP = /the worker process exited with .* within a minute/

export interface ServiceProcess {
  role: 'serve' | 'api' | 'worker'
  process: OffpeakProcess
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

  constructor(options: ServiceProcessesOptions) {
    this.#options = options
    this.#log = createWriteStream(join(options.folder, 'service.log'), { flags: 'a' })
  }

  launch(role: ServiceProcess['role']): ServiceProcess {
    const { folder, env, port } = this.#options
    const listening = role === 'worker' ? [] : ['--port', String(port)]
    const process = new OffpeakProcess([role, '--config', 'offpeak.yaml', ...listening], { cwd: folder, env })
    const serviceProcess = { role, process }
    const { child, said } = process
    this.running.add(serviceProcess)
    process.onLine = (line) => {
      this.#log.write(`${line}\n`)
      if (line.includes('worker lease expired before it was renewed')) this.#options.onLeaseLost(Date.now())
    }
    child.once('exit', () => this.running.delete(serviceProcess))
    // Its streams stay open as long as a worker of its own lives on.
    child.once('close', (code, signal) => {
      const tail = said.slice(-20)
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
    const { process } = serviceProcess
    await (whole ? process.endGroup('SIGKILL') : process.end('SIGKILL'))
  }

  /** SIGKILL to the worker that a `serve` has started; false when it has none just now. */
  killWorkerOf(serviceProcess: ServiceProcess): boolean {
    const [worker] = childrenOf(serviceProcess.process.child)
    if (worker !== undefined) killIfThere(worker)
    return worker !== undefined
  }

  /** In order; resolves with how long it took and whether every process said that all went well. */
  async stop(): Promise<{ ms: number; codes: (number | null)[] }> {
    const begun = performance.now()
    const codes = await Promise.all(
      [...this.running].map(async (serviceProcess) => {
        this.#killed.add(serviceProcess)
        return await serviceProcess.process.end('SIGTERM')
      }),
    )
    return { ms: performance.now() - begun, codes }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all([...this.running].map((serviceProcess) => this.kill(serviceProcess, true)))
    this.#log.end()
  }
}
