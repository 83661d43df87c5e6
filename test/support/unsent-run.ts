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
  /** Of each line. */
  prompts: readonly string[]
}

export function unsentRun(given: UnsentRun): Run {
  const { project_id = 'p', entity = '', deadline = 1_000, batch_id = 'b', idx = 0, prefix_bytes = 0 } = given
  const { prompts } = given
  let at = 0
  const lines = prompts.map((prompt) => {
    const start = at
    at += Buffer.byteLength(prompt)
    return { prompt: { start, end: at } } as ChunkLine
  })
  const claim = { project_id, entity, deadline, idx } as ChunkRow
  const run = new Run(
    claim,
    { id: batch_id, project_id, reask: null, prefix_bytes, lines_ahead: 0 } as BatchRow,
    lines,
    Buffer.from(prompts.join('')),
  )
  for (const position of run.positions()) run.move(position, UNSENT, 'a test begins with it')
  return run
}
