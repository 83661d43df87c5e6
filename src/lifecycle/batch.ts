// Pauses, resumes, cancels and ends batches. A batch ends in the transaction that seals its last chunk, with its
// terminal status, its event and its result files: manifests of its chunks, which exist only for parts with a line.
import { cancelOutcome, finalStatus, isTerminal, type TerminalStatus } from '../domain/batch.ts'
import { ApiError } from '../domain/errors.ts'
import { newId } from '../domain/ids.ts'
import { readRetention } from '../domain/retention.ts'
import { batchEnded, recordEvent } from '../notify/record-event.ts'
import { moveBatch, setBatch } from '../store/batches.ts'
import { readChunkOfLine, wake } from '../store/chunks.ts'
import { expireFile, fileSource, isTableRead } from '../store/files.ts'
import { deleteProjectedSpend } from '../store/ledger.ts'
import { pauseBatch, resumeBatch } from '../store/pauses.ts'
import { stopRemoteBatches } from '../store/remote-batches.ts'
import { insertRow, lockRow, readOwn, readRow, updateRows } from '../store/rows.ts'
import type { BatchRow, ChunkRow } from '../store/schema.ts'
import type { Writer } from '../store/store.ts'
import { insertTask, requeueTask } from '../store/tasks.ts'
import { releaseInput } from './remove-file.ts'

export interface FinishRules {
  file_retention_ms: (plan: string) => number
}

/** Ends the batch if all its chunks are sealed, or it has no lines, and returns its row. */
export async function finishIfDone(
  tx: Writer,
  batch: BatchRow,
  rules: FinishRules,
  now: number,
): Promise<BatchRow | null> {
  if (batch.has_line_events === 1)
    await requeueTask(tx, { ...batch, kind: 'announce', subject: batch.id }, now)
  const isPlanned = batch.chunk_count > 0 || batch.total === 0
  if (
    !isPlanned ||
    batch.gathers_until !== null ||
    batch.chunks_sealed < batch.chunk_count ||
    isTerminal(batch.status)
  )
    return null
  return await endBatch(tx, batch, finalStatus(batch.status, batch.expired_lines), rules, now)
}

/** Ends the batch with a status; null if the table of transitions does not allow it. */
export async function endBatch(
  tx: Writer,
  batch: BatchRow,
  status: TerminalStatus,
  rules: FinishRules,
  now: number,
): Promise<BatchRow | null> {
  // No line of the batch could be sent, because of limits or unknown models.
  if (status === 'completed' && batch.status === 'queued') await moveBatch(tx, batch.id, 'in_progress', now)
  const ended = await moveBatch(tx, batch.id, status, now)
  if (!ended) return null
  const project = await readRow(tx, 'projects', { id: batch.project_id })
  if (!project) throw new Error(`batch ${batch.id} belongs to no project`)
  const retentionMs = rules.file_retention_ms(project.plan)
  const retention = readRetention(batch.retention)
  const ownMs = Math.min(batch.output_expires_after_ms ?? retentionMs, retention?.grace_ms ?? retentionMs)
  const expires_at = now + Math.min(retentionMs, ownMs)
  const files = {
    output_file_id: await addResultFile(tx, batch, 'output', expires_at, now),
    error_file_id: await addResultFile(tx, batch, 'error', expires_at, now),
  }
  await setBatch(tx, batch.id, files)
  await deleteProjectedSpend(tx, batch.id)
  if (retention !== null) await expireInput(tx, batch, now)
  await releaseInput(tx, batch.input_file_id, now)
  const row = { ...ended, ...files }
  await recordEvent(tx, batchEnded(row, status), now)
  // The URL may have been set after `batch` was read.
  if (ended.output_url !== null)
    await insertTask(tx, { kind: 'export', subject: batch.id, project_id: batch.project_id }, now)
  return row
}

async function addResultFile(
  tx: Writer,
  batch: BatchRow,
  part: 'output' | 'error',
  expires_at: number,
  now: number,
): Promise<string | null> {
  const line_count = part === 'output' ? batch.output_lines : batch.error_lines
  if (line_count === 0) return null
  const id = newId('file', now)
  await insertRow(tx, 'files', {
    id,
    project_id: batch.project_id,
    purpose: 'batch_output',
    filename: `${batch.id}_${part}.jsonl`,
    bytes: part === 'output' ? batch.output_bytes : batch.error_bytes,
    line_count,
    status: 'processed',
    created: now,
    expires_at,
    batch_id: batch.id,
    part,
    not_kept: batch.retention === null ? 0 : 1,
  })
  return id
}

/** Ends a batch's input that is not kept, and the table of that input; open batches that read a file defer its end. */
async function expireInput(tx: Writer, { project_id, input_file_id }: BatchRow, now: number): Promise<void> {
  await expireFile(tx, input_file_id, now)
  const input = await readRow(tx, 'files', { id: input_file_id })
  const made = input && fileSource(input)?.made
  if (made && 'table' in made && !(await isTableRead(tx, project_id, made.file_id)))
    await expireFile(tx, made.file_id, now)
}

/**
 * Cancels a batch: no further line is sent, and lines in flight may finish. A second call changes nothing. Returns the
 * batch afterwards. Throws batch_not_found and batch_not_cancellable.
 */
export async function cancelBatch(
  tx: Writer,
  project_id: string,
  id: string,
  now: number,
): Promise<BatchRow> {
  const batch = await readOwn(tx, 'batches', project_id, id)
  if (!batch) throw new ApiError('batch_not_found')
  const effect = cancelOutcome(batch.status)
  if (effect === 'same') return batch
  const moved = effect === 'move' ? await moveBatch(tx, id, 'cancelling', now) : undefined
  if (!moved) throw new ApiError('batch_not_cancellable', `The batch is already ${batch.status}.`)
  if (effect === 'move') await stopRemoteBatches(tx, id, now)
  return moved
}

/** Cancels a line: an attempt in flight may finish, and no other is made. A line that has ended does not change. */
export async function cancelLine(tx: Writer, batch_id: string, line: number): Promise<void> {
  const chunk = await readChunkOfLine(tx, batch_id, line)
  if (!chunk || chunk.state === 'sealed') return
  await markLine(tx, chunk, line, 'cancelled_lines')
  await wake(tx, { batch_id, idx: chunk.idx }).execute()
  await updateRows(tx, 'batches', { id: batch_id })
    .set((eb) => ({ line_cancels: eb('line_cancels', '+', 1) }))
    .execute()
}

/** Cancels a line and hides it as a background response; the line stays in its batch with its record and content. */
export async function deleteResponse(tx: Writer, batch_id: string, line: number): Promise<void> {
  const chunk = await readChunkOfLine(tx, batch_id, line)
  if (!chunk || isResponseDeleted(chunk, line)) throw new ApiError('request_not_found')
  await cancelLine(tx, batch_id, line)
  await markLine(tx, chunk, line, 'deleted_lines')
}

export function isResponseDeleted({ deleted_lines }: Pick<ChunkRow, 'deleted_lines'>, line: number): boolean {
  return linesIn(deleted_lines).includes(line)
}

function linesIn(stored: string | null | undefined): number[] {
  return JSON.parse(stored ?? '[]')
}

async function markLine(
  tx: Writer,
  { batch_id, idx }: Pick<ChunkRow, 'batch_id' | 'idx'>,
  line: number,
  list: 'cancelled_lines' | 'deleted_lines',
): Promise<void> {
  const marked = new Set(linesIn((await lockRow(tx, 'chunks', { batch_id, idx }))?.[list])).add(line)
  await updateRows(tx, 'chunks', { batch_id, idx })
    .set({ [list]: JSON.stringify([...marked]) })
    .execute()
}

/**
 * Pauses or resumes a batch. While it is paused, nothing new is sent, lines in flight may finish, and its window goes
 * on. A second call changes nothing. Returns the batch afterwards. Throws batch_not_found and batch_not_pausable.
 */
export async function setBatchPaused(
  tx: Writer,
  { project_id, id }: { project_id: string; id: string },
  paused: boolean,
  now: number,
): Promise<BatchRow> {
  const batch = await readOwn(tx, 'batches', project_id, id)
  if (!batch) throw new ApiError('batch_not_found')
  if (isTerminal(batch.status) || batch.status === 'cancelling')
    throw new ApiError('batch_not_pausable', `The batch is already ${batch.status}.`)
  if (paused === (batch.paused_at !== null)) return batch
  return paused ? await pauseBatch(tx, id, now) : await resumeBatch(tx, id, now)
}
