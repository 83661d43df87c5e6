// Runs the task `announce` of a batch whose single requests' ends are events: records those of all lines that have ended since
// it ran last, with their deliveries. Which lines have events stands in their chunks, so that a crash neither loses nor repeats
// one. Each commit of lines queues the task.
import { isDamaged } from '../blobs/blobs.ts'
import { responseId } from '../domain/ids.ts'
import { type LineEnd, recordLineEnds } from '../notify/record-event.ts'
import { finishedLines, type ReadPorts } from '../results/finished-lines.ts'
import { chunksOf } from '../store/chunks.ts'
import { lockRow, readRow, updateRows } from '../store/rows.ts'
import type { BatchRow, ChunkRow, TaskRow } from '../store/schema.ts'
import type { Ports } from '../store/store.ts'
import { finishTask, insertTask } from '../store/tasks.ts'
import type { LineRecord } from '../wire/request-record.ts'
import { recordOfLine, responseStatus } from './read-line.ts'

export async function announceLines(
  { store, sealed, clock }: Pick<Ports, 'store' | 'sealed' | 'clock'>,
  task: TaskRow,
): Promise<void> {
  const batch = await readRow(store.read, 'batches', { id: task.subject })
  const ports = { db: store.read, sealed, now: clock.now() }
  const unannounced = { unannounced: true }
  let damage: Error | null = null
  for await (const chunk of chunksOf(store.read, task.subject, unannounced)) {
    if (!batch) break
    const before: number[] = JSON.parse(chunk.announced_lines ?? '[]')
    const ends = await endsIn(ports, batch, chunk, new Set(before)).catch((error: unknown) => {
      if (!isDamaged(error)) throw error
      damage = error
      return null
    })
    if (ends === null) continue
    if (before.length + ends.length < chunk.completed + chunk.failed)
      damage = new Error(`the records of some lines of chunk ${chunk.idx} of ${chunk.batch_id} are gone`)
    const lines = [...before, ...ends.map(({ line }) => line)]
    const announced = { announced_lines: JSON.stringify(lines), announced: lines.length }
    const { batch_id, idx } = chunk
    await store.write(async (tx) => {
      // The lease of the task holds as long as its row has the epoch.
      if (!(await lockRow(tx, 'tasks', { id: task.id, epoch: task.epoch, state: 'leased' }))) return
      await recordLineEnds(tx, batch, ends, clock.now())
      await updateRows(tx, 'chunks', { batch_id, idx }).set(announced).execute()
    })
  }
  // An operator may bring the blob back: the task is tried again.
  if (damage !== null) throw damage
  await store.write(async (tx) => {
    if (!(await finishTask(tx, task))) return
    // A commit that finds the task running does not queue it: the lock makes such a commit be seen here, or see the task gone.
    const { kind, subject, project_id } = task
    await lockRow(tx, 'batches', { id: subject })
    const { done: areAll } = await chunksOf(tx, subject, unannounced).next()
    if (!areAll) await insertTask(tx, { kind, subject, project_id, run_at: clock.now() }, clock.now())
  })
}

/** The ends of the lines of a chunk that are not `known`. */
async function endsIn(
  ports: ReadPorts,
  batch: BatchRow,
  chunk: ChunkRow,
  known: ReadonlySet<number>,
): Promise<LineEnd[]> {
  const ends: LineEnd[] = []
  for (const finished of await finishedLines(ports, chunk)) {
    if (known.has(finished.line)) continue
    const { text } = await recordOfLine(ports.sealed, finished, null)
    const record: LineRecord = JSON.parse(Buffer.concat(await Array.fromAsync(text)).toString())
    ends.push(endOf(record, batch.endpoint === '/v1/responses'))
  }
  return ends
}

function hasEnded<S extends string>(status: S | undefined): status is Exclude<S, 'queued' | 'in_progress'> {
  return status !== undefined && status !== 'queued' && status !== 'in_progress'
}

function endOf(record: LineRecord, isResponse: boolean): LineEnd {
  const { id, batch_id, line, custom_id, entity, conversation, cost_usd, error } = record
  const { status } = record
  const ofResponse = responseStatus(record)
  if (!hasEnded(status) || !hasEnded(ofResponse)) throw new Error(`${id} is recorded, and has not ended`)
  const data = { id, batch_id, custom_id, status, entity, conversation, cost_usd, error }
  return {
    line,
    request: { type: `request.${status}`, data },
    response: isResponse ? { type: `response.${ofResponse}`, data: { id: responseId(id) } } : null,
  }
}
