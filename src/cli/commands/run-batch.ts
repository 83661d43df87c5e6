// Uploads a file, waits for its validation, creates a batch, waits for it and downloads its results. An interrupted
// run is resumed with the same upload and the same batch, which run-state.ts stores.
import { createReadStream } from 'node:fs'
import { BatchObject } from '../../wire/batch.ts'
import { ApiError } from '../client/api-error.ts'
import type { ApiClient } from '../client/client.ts'
import { downloadResults } from '../client/download-results.ts'
import { endpointOfFile } from '../client/endpoint-of-file.ts'
import { AnyObject } from '../client/shapes.ts'
import { hashFile, uploadInput } from '../client/upload.ts'
import { FileInvalid, progressOf, type Watch, watchBatch, watchFile } from '../client/watch-batch.ts'
import { humanBytes } from '../terminal/format.ts'
import { batchLine, uploadLine, waitLine } from '../terminal/progress-line.ts'
import { type CodeCount, countByCode, failedLines } from './failed-lines.ts'
import { checkModel } from './models.ts'
import {
  idempotencyKey,
  newRunState,
  type RunState,
  type RunTerms,
  readRunState,
  removeRunState,
  runStatePath,
  sameTerms,
  writeRunState,
} from './run-state.ts'

export interface RunOrder extends RunTerms {
  input: string
  output: string
  errors: string
  /** Of every request, where one option says it. */
  model?: string
}

export interface RunReport {
  batch: BatchObject
  /** Since this process started; a resumed run counts from its resumption. */
  durationMs: number
  /** Error codes of failed lines, most frequent first. */
  failures: CodeCount[]
}

/**
 * Throws FileInvalid, ApiError or Interrupted; the run can be resumed after the last two. `finish` is called with the
 * results on disk; until it has returned, the run can be resumed.
 */
export async function runBatch(
  client: ApiClient,
  order: RunOrder,
  watch: Watch,
  finish: () => Promise<void> = async () => {},
): Promise<RunReport> {
  const started = watch.clock.now()
  const statePath = runStatePath(order.output)
  // Detects a wrong address or key before the file is uploaded.
  await client.get(AnyObject, '/v1/models', { limit: 1 })
  let state = await earlierRun(order, statePath, watch)
  if (state === undefined) await checkModel(client, order)
  let batch: BatchObject | undefined
  while (batch === undefined) {
    try {
      batch = await untilDone(client, order, state, statePath, watch)
    } catch (error) {
      if (error instanceof FileInvalid) await removeRunState(statePath)
      // The upload or the batch of the earlier run no longer exists: start a new run.
      if (state === undefined || !(error instanceof ApiError) || error.status !== 404) throw error
      watch.view.message('The upload or batch of the interrupted run no longer exists. Starting a new run.')
      await removeRunState(statePath)
      state = undefined
    }
  }
  await fetchResults(client, batch, order, watch)
  await finish()
  await removeRunState(statePath)
  const failures = await countByCode(failedLines(createReadStream(order.errors)))
  return { batch, durationMs: watch.clock.now() - started, failures }
}

/** The interrupted run to resume, if neither the file nor the options have changed since. */
async function earlierRun(order: RunOrder, statePath: string, watch: Watch): Promise<RunState | undefined> {
  const state = await readRunState(statePath)
  if (state === undefined) return undefined
  if (sameTerms(state, order) && state.input_sha256 === (await hashFile(order.input))) {
    watch.view.message(
      `Resuming the interrupted run${state.batch_id === null ? '' : ` (${state.batch_id})`}.`,
    )
    return state
  }
  const left = state.batch_id === null ? '' : ` ${state.batch_id} is not changed.`
  watch.view.message(`The interrupted run had another input or other options. Starting a new run.${left}`)
  return undefined
}

async function untilDone(
  client: ApiClient,
  order: RunOrder,
  earlier: RunState | undefined,
  statePath: string,
  watch: Watch,
): Promise<BatchObject> {
  let state = earlier ?? (await upload(client, order, watch))
  if (earlier === undefined) await writeRunState(statePath, state)
  if (state.batch_id === null) {
    await watchFile(client, state.file_id, watch)
    const batch = await client.post(
      BatchObject,
      '/v1/batches',
      {
        input_file_id: state.file_id,
        endpoint: await endpointOfFile(order.input),
        completion_window: state.window,
        ...(Object.keys(state.metadata).length === 0 ? {} : { metadata: state.metadata }),
        ...(state.dedupe === undefined ? {} : { dedupe: state.dedupe }),
      },
      { 'idempotency-key': idempotencyKey(state) },
    )
    state = { ...state, batch_id: batch.id }
    await writeRunState(statePath, state)
    return await watchBatch(client, batch.id, watch)
  }
  return await watchBatch(client, state.batch_id, watch)
}

/** Shows the progress of the download, then that of the batch again. */
async function fetchResults(
  client: ApiClient,
  batch: BatchObject,
  order: RunOrder,
  { view, pace, clock, signal }: Watch,
): Promise<void> {
  const onBytes = (written: number): void =>
    view.show(batch.status, (columns, paint) =>
      waitLine(`downloading ${humanBytes(written)}`, columns, paint),
    )
  await downloadResults(client, batch, order, { pace, clock, signal, onBytes })
  view.show(batch.status, (columns, paint) => batchLine(progressOf(batch), columns, paint))
}

async function upload(client: ApiClient, order: RunOrder, { view }: Watch): Promise<RunState> {
  const { file, sha256 } = await uploadInput(client, order.input, (sent, total) =>
    view.show('uploading', (columns, paint) => uploadLine(sent, total, columns, paint)),
  )
  return newRunState(order, sha256, file.id)
}
