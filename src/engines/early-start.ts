// An engine that is started before the worker that it belongs to. Its start is what takes longest of a run, so it begins
// first; the worker gets the ends of its pipes when it is started, and owns it from then on. Until then it ends with
// this process.
import type { Readable } from 'node:stream'
import type { EngineConfig } from '../config/config.ts'
import type { EarlyEngine } from './engine.ts'
import { type EngineEnds, inheritedEngine, spawnEngine } from './engine-process.ts'
import { newApiKey, orderOf } from './engine-spec.ts'
import { freePort } from './loopback.ts'

/** What the worker is told beside the ends, as a message between processes. */
export interface Inheritance {
  pid: number | undefined
  program: string
  port: number
  api_key: string
  at: number
  /** What was read of each end. */
  read: string[]
}

export class EarlyStart {
  readonly #started: Omit<Inheritance, 'read'>
  readonly #ends: EngineEnds

  private constructor(started: Omit<Inheritance, 'read'>, ends: EngineEnds) {
    this.#started = started
    this.#ends = ends
  }

  /** `now`: Unix ms. */
  static async begin(spec: EngineConfig, model: string, now: number): Promise<EarlyStart> {
    const [port, api_key] = [await freePort(), newApiKey()]
    const { pid, ends } = spawnEngine(orderOf(spec, { port, api_key, model }))
    ends.control.on('error', () => {})
    return new EarlyStart({ pid, program: spec.command[0] ?? '', port, api_key, at: now }, ends)
  }

  /** For the process that inherits it, in this order. */
  get ends(): [Readable, Readable, Readable] {
    return [this.#ends.control, ...this.#ends.output]
  }

  /** To be called in the turn of the event loop in which the other process is started. */
  handOver(): Inheritance {
    const read = this.ends.map((end) => (end.read() as Buffer | null)?.toString() ?? '')
    for (const end of this.ends) end.destroy()
    return { ...this.#started, read }
  }

  /** Ends it, where no worker has taken it over. */
  stop(): void {
    for (const end of this.ends) end.destroy()
  }
}

/** `fd`: the first of the descriptors that `ends` became. */
export function inherit({ pid, program, read, ...rest }: Inheritance, fd: number): EarlyEngine {
  return { ...rest, process: inheritedEngine(pid, program, fd, read) }
}
