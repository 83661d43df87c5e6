// Which line of which batch asks what. Custom IDs, texts and whole request bodies are alike in all batches and projects, so
// an answer that goes to another batch can only be told by what it says: servers answer with the name of the request, and
// know its batch from the trace context of the call.

import type { BackendCall } from '../../src/backends/backend.ts'
import type { Reask } from '../../src/domain/batch.ts'
import type { EndpointPath } from '../../src/domain/endpoint.ts'
import { bodyOf } from './answering.ts'

/** One line of a batch. */
export interface PlannedLine {
  custom_id: string
  /** Names it in the whole run: `b0/l5`. */
  name: string
  /** What it asks: `b0/q3`. Identical lines of a batch ask the same. */
  request: string
  /** Its entity; '' without one. */
  entity: string
  model: string
  /** Whether lines that ask the same may share its answer. */
  isShared: boolean
  /** The index of its chunk, which changes if chunks are cut along beginnings. */
  chunk: number
}

export interface PlannedBatch {
  id: string
  /** `b0`, `b1`, … in the order of their creation. */
  name: string
  /** Of the call that created it. */
  traceparent: string
  project_id: string
  key_id: string
  endpoint: EndpointPath
  lines: readonly PlannedLine[]
  expires_at: number
  /** Which answers are asked for again. */
  reask: Reask | null
  /** Nothing is sent before (Unix ms); null: it may begin at once. */
  start_after: number | null
  /** Its result lines, read before its files were deleted; null while the files exist. */
  read: { outputs: string[]; errors: string[] } | null
  /** Whether the failed lines were sent again as another batch. */
  isRetried: boolean
  /** Whether a caller deleted its input while it ran. */
  isInputDeleted: boolean
  /** The custom_ids of lines that a caller cancelled one by one. */
  cancelledLines?: Set<string>
}

/** A request of a batch, and the lines that ask it. */
export interface Ask {
  batch: PlannedBatch
  lines: readonly PlannedLine[]
}

/** The API keys of every project. */
export const SIM_KEYS = ['key_a', 'key_b'] as const

/** The key by which the batch of this name is created. */
export function keyOfBatch(name: string): string {
  return SIM_KEYS[Number(name.slice(1)) % SIM_KEYS.length]!
}

const TRACE_ID = /^00-0*([1-9a-f][0-9a-f]*)-/

export class Plans {
  readonly batches: PlannedBatch[] = []
  readonly #byId = new Map<string, PlannedBatch>()
  readonly #byName = new Map<string, PlannedBatch>()
  readonly #lines = new Map<string, PlannedLine>()
  readonly #asks = new Map<string, Ask>()
  readonly #deadlines = new Map<string, number>()

  add(batch: PlannedBatch): void {
    this.batches.push(batch)
    this.#byId.set(batch.id, batch)
    this.#byName.set(batch.name, batch)
    this.extend(batch, [])
  }

  /** Single requests come one after the other. */
  extend(batch: PlannedBatch, lines: readonly PlannedLine[]): void {
    batch.lines = [...batch.lines, ...lines]
    for (const line of batch.lines) this.#lines.set(line.name, line)
    for (const [request, lines] of Map.groupBy(batch.lines, ({ request }) => request))
      this.#asks.set(request, { batch, lines })
  }

  /** Of the next batch: its name, and the trace context of the call that creates it. */
  get next(): { name: string; traceparent: string } {
    const number = this.batches.length
    const trace = (number + 1).toString(16).padStart(32, '0')
    return { name: `b${number}`, traceparent: `00-${trace}-0000000000000001-00` }
  }

  /** Undefined for a batch that nobody has planned. */
  batch(id: string): PlannedBatch | undefined {
    return this.#byId.get(id)
  }

  /** As the state of chunks is kept by. */
  chunkKey({ name, chunk }: PlannedLine): string {
    return `${this.#byName.get(name.slice(0, name.indexOf('/')))?.id} ${chunk}`
  }

  /** A chunk was made of the lines with these numbers. */
  cut(key: string, numbers: readonly number[]): void {
    const [id = '', idx] = key.split(' ')
    for (const number of numbers) this.batch(id)!.lines[number - 1]!.chunk = Number(idx)
  }

  linesOfChunk(key: string): readonly PlannedLine[] {
    const [id = '', idx] = key.split(' ')
    return this.batch(id)?.lines.filter(({ chunk }) => chunk === Number(idx)) ?? []
  }

  requestOfLine(name: string): string {
    return this.#lines.get(name)?.request ?? name
  }

  line(batch_id: string, custom_id: string): PlannedLine | undefined {
    return this.#lines.get(`${this.batch(batch_id)?.name}/${custom_id}`)
  }

  /** Which request of which batch a call is about. */
  requestOf(call: BackendCall): string {
    const number = Number.parseInt(TRACE_ID.exec(call.traceparent ?? '')?.[1] ?? '0', 16)
    return `b${number - 1}/${bodyOf(call).text}`
  }

  ask(request: string): Ask {
    const ask = this.#asks.get(request)
    if (!ask) throw new Error(`no line asks ${request}`)
    return ask
  }

  /** When a request is due (Unix ms): at the end of the window of its batch, unless its chunk is due earlier. */
  deadlineOf(request: string): number {
    return this.#deadlines.get(request) ?? this.#asks.get(request)?.batch.expires_at ?? 0
  }

  /** The chunk of the request is due then. */
  due(request: string, deadline: number): void {
    this.#deadlines.set(request, deadline)
  }
}
