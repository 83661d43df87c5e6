// A batch API as the executor of remote batches sees it, which submits lines to it by the chunk.
import type { BatchApi } from '../../../backends/batch-api/batch-api.ts'
import { type Call, Upstream, type UpstreamOptions } from '../../../servers/upstream.ts'

/** The time in ms for which a size is remembered at which a batch API refused a batch. */
const ROOM_MS = 3_600_000

interface BatchApiUpstreamOptions extends UpstreamOptions {
  /** Names the upstream in audit records, logs and metrics. */
  name: string
  api: BatchApi
  /** Bounds of a batch; absent: those of a chunk. */
  lines_max?: number | null
  tokens_max?: number | null
}

export class BatchApiUpstream extends Upstream {
  readonly name: string
  readonly api: BatchApi
  readonly operatorFields = null
  readonly #linesMax: number
  readonly #tokensMax: number
  /** The projected tokens that a batch may have, learned from refused batches, until a time (Unix ms). */
  readonly #room: { tokens: number; until: number }
  /** Lines at the batch API by project, as last seen, and lines on their way there. */
  readonly #lines: { open: ReadonlyMap<string, number>; readonly onTheirWay: Map<string, number> }

  constructor(options: BatchApiUpstreamOptions) {
    const { before = null } = options
    super(options, { max: options.concurrency_max })
    this.#lines =
      before instanceof BatchApiUpstream ? before.#lines : { open: new Map(), onTheirWay: new Map() }
    this.#room = before instanceof BatchApiUpstream ? before.#room : { tokens: 0, until: 0 }
    this.#linesMax = options.lines_max ?? Number.POSITIVE_INFINITY
    this.#tokensMax = options.tokens_max ?? Number.POSITIVE_INFINITY
    this.name = options.name
    this.api = options.api
  }

  async close(): Promise<void> {
    await this.api.close()
  }

  /** A call to the batch API for lines of a batch; its failure is no line's fault. */
  callFor(batch_id: string, line: object, sentAt: number): Call {
    return { batch_id, line, sentAt, missedBefore: false, probing: null, inFlight: 0, cohort: null }
  }

  /** The number of lines that one batch may have, by the projected tokens of each line; at least one. */
  fitting(tokens: readonly number[], now: number): number {
    const { tokens: learned, until } = this.#room
    const most = now < until ? Math.min(learned, this.#tokensMax) : this.#tokensMax
    let sum = tokens[0] ?? 0
    for (let count = 1; count < tokens.length; count++) {
      sum += tokens[count]!
      if (sum > most || count >= this.#linesMax) return count
    }
    return tokens.length
  }

  /** Notes that the batch API refused a batch of this many projected tokens for its size. */
  refusedSize(tokens: number, now: number): void {
    Object.assign(this.#room, { tokens: Math.floor(tokens / 2), until: now + ROOM_MS })
  }

  get linesThere(): number {
    let lines = 0
    for (const map of [this.#lines.open, this.#lines.onTheirWay])
      for (const count of map.values()) lines += count
    return lines
  }

  linesOf(project_id: string): number {
    const { open, onTheirWay } = this.#lines
    return (open.get(project_id) ?? 0) + (onTheirWay.get(project_id) ?? 0)
  }

  sawLines(open: ReadonlyMap<string, number>): void {
    this.#lines.open = open
  }

  /** Counts lines on their way to the batch API; the returned function is told whether they have arrived. */
  handOver(project_id: string, lines: number): (areThere: boolean) => void {
    const { onTheirWay } = this.#lines
    const add = (by: number): void => void onTheirWay.set(project_id, (onTheirWay.get(project_id) ?? 0) + by)
    add(lines)
    return (areThere) => {
      add(-lines)
      if (onTheirWay.get(project_id) === 0) onTheirWay.delete(project_id)
      const { open } = this.#lines
      if (areThere) this.#lines.open = new Map(open).set(project_id, (open.get(project_id) ?? 0) + lines)
    }
  }
}
