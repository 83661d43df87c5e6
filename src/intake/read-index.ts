// Reads the index of a validated file. A damaged index is rebuilt from the content of the file, since it contains
// nothing else.
import { isDamaged } from '../blobs/blobs.ts'
import type { Model } from '../domain/model.ts'
import type { FileIndex } from '../jsonl/projection.ts'
import { type BatchProjection, type ProjectionTerms, projectBatch } from '../ledger/check-limits.ts'
import { insertBlobs, markForDeletion, readBlobRow } from '../store/blobs.ts'
import { readFile, replaceIndex } from '../store/files.ts'
import type { FileRow } from '../store/schema.ts'
import type { Ports } from '../store/store.ts'
import { readPromptStatistics } from '../store/usage.ts'
import { validateContent } from './validation.ts'

type IndexDeps = Pick<Ports, 'store' | 'sealed' | 'clock'>

/** The file was within the limits when it was uploaded; it stays valid when they are lowered. */
const UNLIMITED = { lines_max: Number.MAX_SAFE_INTEGER, line_bytes_max: Number.MAX_SAFE_INTEGER }

/** Null for a file without an index: it is invalid or deleted. Throws if the content is damaged too. */
export async function readIndex(
  deps: IndexDeps,
  file: FileRow | undefined,
  signal?: AbortSignal,
): Promise<FileIndex | null> {
  const blob = file?.index_blob ? await readBlobRow(deps.store.read, file.index_blob) : undefined
  if (!file || !blob || blob.deletion_pending_since !== null) return null
  try {
    return JSON.parse(String(await deps.sealed.readAll(blob.project_id, blob)))
  } catch (error) {
    if (!isDamaged(error)) throw error
    return await rebuildIndex(deps, file, blob.key, signal)
  }
}

async function rebuildIndex(
  { store, sealed, clock }: IndexDeps,
  file: FileRow,
  damaged: string,
  signal: AbortSignal | undefined,
): Promise<FileIndex | null> {
  const content = file.content_blob ? await readBlobRow(store.read, file.content_blob) : undefined
  if (!content) return null
  const found = await validateContent(() => sealed.read(content.project_id, content), UNLIMITED, { signal })
  if (!found.ok)
    throw new Error(`the content of ${file.id} is not the content that was validated: ${found.details}`)
  const key = `files/${file.id}/index-rebuilt-${clock.now().toString(36)}`
  const index = await sealed.put(file.project_id, key, [Buffer.from(JSON.stringify(found.index))])
  await store.write(async (tx) => {
    const now = clock.now()
    await insertBlobs(tx, file.project_id, [index], now)
    const replaced = await replaceIndex(tx, file.id, damaged, key)
    // Another process has replaced it first, or the file was deleted meanwhile.
    await markForDeletion(tx, [replaced ? damaged : key], now)
  })
  return found.index
}

/** Projects the cost of a batch from the index of its input file. */
interface ProjectionDeps extends IndexDeps {
  models: ReadonlyMap<string, Model>
}

/** Null when a batch cannot read the file; createBatch throws the reason. */
export async function readProjection(
  deps: ProjectionDeps,
  wanted: ProjectionTerms & { project_id: string; input_file_id: string },
): Promise<BatchProjection | null> {
  const seen = await readPromptStatistics(deps.store.read)
  const models = new Map([...deps.models].map(([id, model]) => [id, { ...model, seen: seen.get(id) }]))
  const index = await readIndex(
    deps,
    await readFile(deps.store.read, wanted.project_id, wanted.input_file_id, deps.clock.now()),
  )
  return index && projectBatch(index, models, wanted)
}
