// A run without a store, with all its lines unsent.
import { UNSENT } from '../../src/dispatch/line-state.ts'
import { Run } from '../../src/dispatch/run.ts'
import type { ChunkLine } from '../../src/jsonl/chunk-lines.ts'
import type { BatchRow, ChunkRow } from '../../src/store/schema.ts'

export interface UnsentRun {
  project_id?: string
  entity?: string
  /** Unix ms. */
  deadline?: number
  batch_id?: string
  idx?: number
  prefix_bytes?: number
  /** Of the batch; infinite: it does not come to its end. */
  chunk_count?: number
  line_order?: 'file'
  is_gathered?: number
  /** Of each line; 0: none. */
  output_tokens_max?: number
  /** Of each line. */
  prompts: readonly string[]
}

export function unsentRun(given: UnsentRun): Run {
  const { project_id = 'p', entity = '', deadline = 1_000, batch_id = 'b', idx = 0, prefix_bytes = 0 } = given
  const { prompts, output_tokens_max = 0, chunk_count = Number.POSITIVE_INFINITY } = given
  const { line_order = null, is_gathered = 0 } = given
  let at = 0
  const lines = prompts.map((prompt) => {
    const start = at
    at += Buffer.byteLength(prompt)
    const span = { start, end: at }
    return { prompt: span, body: span, output_tokens_max } as ChunkLine
  })
  const claim = { project_id, entity, deadline, idx } as ChunkRow
  const batch = {
    ...{ id: batch_id, project_id, reask: null, prefix_bytes, lines_ahead: 0 },
    ...{ chunk_count, line_order, is_gathered },
  } as BatchRow
  const run = new Run(claim, batch, lines, Buffer.from(prompts.join('')))
  for (const position of run.positions()) run.move(position, UNSENT, 'a test begins with it')
  return run
}
