// Builds a file's index line by line: where its chunks lie, and the token sums by model and entity.
import { CHUNK_BYTES_MAX, CHUNK_LINES_MAX, type ChunkSpan } from '../domain/batch.ts'
import { type FileIndex, GROUPS_MAX } from '../jsonl/file-index.ts'
import type { InputLine } from '../jsonl/line-scan.ts'
import { addLine, emptySums, type TokenSums } from '../jsonl/projection.ts'

/** No model has a longer name; longer names are not stored. */
const MODEL_CHARACTERS_MAX = 256
/** Bounds `unattributed`; no configuration has as many models. */
const MODELS_MAX = 1000

export class FileIndexer {
  #chunks: ChunkSpan[] = []
  #chunk: ChunkSpan | null = null
  #groups: TokenSums[] = []
  #byModel = new Map<string | null, Map<string | null, TokenSums>>()
  #unattributed = new Map<string | null, TokenSums>()
  /** The group of the previous line: most lines belong to it. */
  #last = emptySums(null, null)
  #groupsMax: number

  constructor(groupsMax = GROUPS_MAX) {
    this.#groupsMax = groupsMax
  }

  /** The line with number `number`, at `byte_start` to `byte_end` (after its line break) in the file. */
  add(line: InputLine, number: number, byte_start: number, byte_end: number): void {
    this.#chunk = this.#place(number, byte_start, byte_end, modelOf(line))
    addLine(this.#group(line), line.body)
  }

  finish(): FileIndex {
    return { chunks: this.#chunks, groups: this.#groups, unattributed: [...this.#unattributed.values()] }
  }

  /** The chunk that the line belongs to, the line included. */
  #place(number: number, byte_start: number, byte_end: number, model: string | null): ChunkSpan {
    const open = this.#chunk
    if (open !== null && open.line_count < CHUNK_LINES_MAX && byte_end - open.byte_start <= CHUNK_BYTES_MAX) {
      open.line_count++
      open.byte_end = byte_end
      if (open.model !== model) open.model = null
      return open
    }
    const index = this.#chunks.length
    const chunk = { index, first_line: number, line_count: 1, byte_start, byte_end, model }
    this.#chunks.push(chunk)
    return chunk
  }

  #group(line: InputLine): TokenSums {
    const model = modelOf(line)
    const { entity } = line
    const last = this.#last
    if (last.lines > 0 && last.model === model && last.entity === entity) return last
    const found = this.#byModel.get(model)?.get(entity)
    if (found === undefined && this.#groups.length >= this.#groupsMax) return this.#unattributedSums(model)
    this.#last = found ?? this.#newGroup(model, entity)
    return this.#last
  }

  #newGroup(model: string | null, entity: string | null): TokenSums {
    const sums = emptySums(model, entity)
    this.#groups.push(sums)
    const entities = this.#byModel.get(model)
    if (entities === undefined) this.#byModel.set(model, new Map([[entity, sums]]))
    else entities.set(entity, sums)
    return sums
  }

  #unattributedSums(model: string | null): TokenSums {
    const kept = this.#unattributed.has(model) || this.#unattributed.size < MODELS_MAX ? model : null
    const found = this.#unattributed.get(kept)
    if (found !== undefined) return found
    const sums = emptySums(kept, null)
    this.#unattributed.set(kept, sums)
    return sums
  }
}

function modelOf({ body: { model } }: InputLine): string | null {
  return model !== null && model.length <= MODEL_CHARACTERS_MAX ? model : null
}
