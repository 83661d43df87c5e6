// A batch without lines: of a file that did not validate, or that was still being validated when the batch was created,
// as clients of OpenAI's API may do. When such a file is processed, its lines pass the checks that they would have
// passed before; a batch whose lines do not pass them fails and says why.
import { type StopReason, stopReason } from '../domain/batch.ts'
import { ApiError, ERRORS } from '../domain/errors.ts'
import { negotiateLanguage } from '../domain/language.ts'
import { recordProjectedSpend } from '../ledger/admit.ts'
import { failBatch, finishIfDone } from '../results/finish.ts'
import { readBatchRow, setBatchErrors, setBatchLines } from '../store/batches.ts'
import { fileProblems, lockInputFile, readFileRow } from '../store/files.ts'
import { readProject } from '../store/projects.ts'
import type { BatchRow, FileRow, TaskRow } from '../store/schema.ts'
import { finishTask, insertTask, postponeTask } from '../store/tasks.ts'
import type { BatchProblem } from '../wire/batch.ts'
import { admitLines, modelsText } from './create-batch.ts'
import type { PlanDeps } from './plan.ts'
import { readProjection } from './read-projection.ts'

const LOOK_INTERVAL_MS = 1000
/** A failed batch itself names so many of its lines; its error file names each. */
export const PROBLEMS_MAX = 20

/** Returns the batch if it has ended. Otherwise its task is postponed, or made anew once the batch has lines. */
export async function awaitFile(deps: PlanDeps, task: TaskRow, batch: BatchRow): Promise<BatchRow | null> {
  const { store, clock } = deps
  const now = clock.now()
  const stop = stopReason(batch, now)
  const file = await readFileRow(store.read, batch.input_file_id)
  if (stop !== null) return await end(deps, task, batch, [problem(stop, ERRORS[stop].message)], stop)
  // Maintenance deletes a file that has expired, and the batch then ends with `input_file_deleted`.
  if (file?.deleted_at === null && (file.status === 'pending' || file.expires_at <= now)) {
    await store.write((tx) => postponeTask(tx, task, now + LOOK_INTERVAL_MS, null))
    return null
  }
  if (file?.status !== 'processed') return await end(deps, task, batch, problemsOf(file))
  try {
    await addLines(deps, task, batch)
    return null
  } catch (error) {
    if (!(error instanceof ApiError)) throw error
    return await end(deps, task, batch, [problem(error.code, error.message)])
  }
}

/** Throws quota_exceeded and usage_limit_exceeded. */
async function addLines(deps: PlanDeps, task: TaskRow, batch: BatchRow): Promise<void> {
  const { store, clock, plans } = deps
  const { id, project_id, input_file_id, header_entity } = batch
  const metadata = batch.metadata === null ? null : JSON.parse(batch.metadata)
  const wanted = { project_id, input_file_id, header_entity, metadata }
  const projection = await readProjection(deps, wanted)
  const quotas = plans.get((await readProject(store.read, project_id))?.plan ?? '')?.quotas
  if (!projection || !quotas)
    throw new Error(`the input of batch ${id} or the plan of its project is missing`)
  await store.write(async (tx) => {
    const now = clock.now()
    const file = await lockInputFile(tx, project_id, input_file_id, now)
    if (!(await finishTask(tx, task))) return
    if (file) {
      const owner = { project_id, quotas, language: negotiateLanguage(batch.language ?? undefined) }
      await admitLines(tx, owner, projection, { queued_lines: file.line_count }, now)
      await setBatchLines(tx, id, { total: file.line_count, models: modelsText(projection) })
      await recordProjectedSpend(tx, batch, projection)
    }
    await insertTask(tx, { kind: 'plan', subject: id, project_id, large: task.large }, now)
  })
}

async function end(
  { store, clock, rules }: PlanDeps,
  task: TaskRow,
  { id }: BatchRow,
  errors: readonly BatchProblem[],
  stop: StopReason | null = null,
): Promise<BatchRow | null> {
  return await store.write(async (tx) => {
    if (!(await finishTask(tx, task))) return null
    await setBatchErrors(tx, id, JSON.stringify(errors))
    const now = clock.now()
    const batch = await readBatchRow(tx, id)
    if (!batch) return null
    const status = stop === 'batch_expired' ? 'expired' : 'failed'
    // A batch that is being cancelled ends as cancelled.
    return (await failBatch(tx, batch, rules, now, status)) ?? (await finishIfDone(tx, batch, rules, now))
  })
}

function problemsOf(file: FileRow | undefined): BatchProblem[] {
  return fileProblems(file?.errors ?? '[]')
    .slice(0, PROBLEMS_MAX)
    .map(({ line, code, message, param = null }) => ({
      code,
      message,
      param,
      line: line === 0 ? null : line,
    }))
}

function problem(code: string, message: string): BatchProblem {
  return { line: null, code, message, param: null }
}
