// Reads what a batch over a file may cost from the file's index.
import type { SealedBlobs } from '../blobs/sealed.ts'
import type { FileIndex } from '../domain/file-index.ts'
import type { Model } from '../domain/model.ts'
import { type BatchProjection, type EntityDefaults, projectBatch } from '../ledger/project-batch.ts'
import { readBlobRow } from '../store/blob-rows.ts'
import { readFile } from '../store/files.ts'
import type { Reader } from '../store/store.ts'

export interface ProjectionDeps {
  db: Reader
  sealed: SealedBlobs
  models: ReadonlyMap<string, Model>
}

/** Null when the file is not one that a batch can read; creating the batch says why. */
export async function readProjection(
  { db, sealed, models }: ProjectionDeps,
  wanted: EntityDefaults & { project_id: string; input_file_id: string },
): Promise<BatchProjection | null> {
  const file = await readFile(db, wanted.project_id, wanted.input_file_id)
  const blob = file?.index_blob ? await readBlobRow(db, file.index_blob) : undefined
  if (!blob || blob.doomed_at !== null) return null
  const index: FileIndex = JSON.parse(String(await sealed.readAll(blob.project_id, blob)))
  return projectBatch(index, models, wanted)
}
