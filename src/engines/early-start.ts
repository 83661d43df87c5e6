// Starts an engine before the worker that owns it, because nothing else in a run takes as long. The worker
// gets the engine's pipes when it is started, and owns it from then on. Until then the engine ends with this process.
import type { Readable } from 'node:stream'
import type { EngineConfig } from '../config/config.ts'
import type { EarlyEngine } from './engine.ts'
import { type EnginePlace, newApiKey, newPlace, orderOf } from './engine-access.ts'
import {
  type EngineEnds,
  EngineOutput,
  inheritedEngine,
  type Started,
  spawnEngine,
} from './engine-process.ts'

/** The message to the worker that takes the engine over. */
export interface Inheritance extends Started {
  place: EnginePlace
  /** The file that gets its output. */
  output: string
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

  /** `output`: the file that gets its output; `now`: Unix ms. */
  static async begin(spec: EngineConfig, model: string, output: string, now: number): Promise<EarlyStart> {
    const [place, api_key] = [await newPlace(spec), newApiKey()]
    const { ends, ...ids } = spawnEngine(orderOf(spec, place, { api_key, model }))
    ends.control.on('error', () => {})
    const { pid, tag } = ids
    return new EarlyStart({ pid, tag, program: spec.command[0] ?? '', place, output, api_key, at: now }, ends)
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
export function inherit(
  { read, place, api_key, at, output: path, ...started }: Inheritance,
  fd: number,
): EarlyEngine {
  const output = new EngineOutput(path)
  return { place, api_key, at, output, process: inheritedEngine(started, fd, read, output) }
}
