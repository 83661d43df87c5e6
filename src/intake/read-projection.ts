// Projects the cost of a batch from the index of its input file.
import type { Model } from '../domain/model.ts'
import { type BatchProjection, type EntityDefaults, projectBatch } from '../ledger/project-batch.ts'
import { readFile } from '../store/files.ts'
import { readPromptStatistics } from '../store/statistics.ts'
import { type IndexDeps, readIndex } from './read-index.ts'

export interface ProjectionDeps extends IndexDeps {
  models: ReadonlyMap<string, Model>
}

/** Null when a batch cannot read the file; createBatch throws the reason. */
export async function readProjection(
  deps: ProjectionDeps,
  wanted: EntityDefaults & { project_id: string; input_file_id: string },
): Promise<BatchProjection | null> {
  const seen = await readPromptStatistics(deps.store.read)
  const models = new Map([...deps.models].map(([id, model]) => [id, { ...model, seen: seen.get(id) }]))
  const index = await readIndex(
    deps,
    await readFile(deps.store.read, wanted.project_id, wanted.input_file_id, deps.clock.now()),
  )
  return index && projectBatch(index, models, wanted)
}
