// POST /v1/batches/{batch_id}/retry: runs the failed lines of a batch again, as a new file and a new batch.
import { Type } from 'typebox'
import { shownDedupe } from '../../domain/batch.ts'
import { negotiateLanguage } from '../../domain/language.ts'
import { ProjectQueue } from '../../domain/project-queue.ts'
import { checkQuotas } from '../../intake/check-quota.ts'
import { createBatch, orderBatch, ValidationWaits } from '../../intake/create-batch.ts'
import type { Incoming } from '../../intake/incoming.ts'
import { readProjection } from '../../intake/read-index.ts'
import { uploadFailedLines } from '../../intake/retry-lines.ts'
import { commitOrDiscard } from '../../intake/upload.ts'
import { METADATA_PAIRS_MAX } from '../../jsonl/line-scan-metadata.ts'
import type { BatchProjection } from '../../ledger/project-batch.ts'
import { removeFile } from '../../lifecycle/remove-file.ts'
import type { BatchRow, FileRow } from '../../store/schema.ts'
import { BatchObject, type Metadata, RetryBatch, WINDOW_RULES } from '../../wire/batch.ts'
import { callerOf, planOf, viewOf } from '../access/caller.ts'
import { type Idempotency, IdempotencyHeaders, idempotentCall, sendOnce } from '../request/idempotency.ts'
import { whileConnected } from '../response/when-closed.ts'
import { type App, type RouteDependencies, route } from '../route.ts'
import { BatchParams, showBatch, visibleBatch } from './batches.ts'

type Deps = Pick<
  RouteDependencies,
  | 'store'
  | 'sealed'
  | 'clock'
  | 'models'
  | 'region'
  | 'plans'
  | 'wake'
  | 'wait_for_file_ms'
  | 'streamingValidation'
  | 'file_bytes_max'
> & { idempotency: Idempotency; incoming: Incoming }

export function retryBatchRoute(app: App, deps: Deps): void {
  const { store, clock, idempotency, incoming, region, plans, wake, file_bytes_max } = deps
  const projectQueue = new ProjectQueue({ atOnce: Number.POSITIVE_INFINITY, perProject: 1 })
  const waits = new ValidationWaits(store, clock, deps.wait_for_file_ms)
  app.addHook('preClose', async () => waits.stop())
  route(app, {
    method: 'POST',
    url: '/v1/batches/:batch_id/retry',
    access: ['batches:write'],
    doc: {
      operation: 'retryBatch',
      summary: 'Run the failed lines of a batch again',
      description:
        'Makes a new file of the failed lines, byte for byte, and a new batch that names the old one in `metadata.retry_of` and has its `dedupe`. The batch must have ended, and its input file must still exist.',
      answer: BatchObject,
      rules: { body: { properties: WINDOW_RULES } },
      headers: IdempotencyHeaders,
      errors: [
        'batch_not_found',
        'batch_not_retryable',
        'plan_lacks_feature',
        'file_not_processed',
        'usage_limit_exceeded',
        'quota_exceeded',
      ],
    },
    accepts: { params: BatchParams, body: Type.Union([RetryBatch, Type.Null()]) },
    async handler(request, reply) {
      const caller = callerOf(request)
      const { project_id } = caller
      const plan = planOf(plans, caller)
      const { quotas } = plan
      const { completion_window, ...which } = request.body ?? {}
      const old = await visibleBatch(store.read, project_id, request.params.batch_id)
      const metadata = retryMetadata(old)
      const owner = {
        project_id,
        key_id: caller.key_id,
        header_entity: old.header_entity,
        language: negotiateLanguage(request.headers['accept-language']),
        traceparent: request.traceContext,
        takesAnyFile: false,
      }
      const orderOf = (input_file_id: string) =>
        orderBatch(
          {
            input_file_id,
            endpoint: old.endpoint,
            completion_window: completion_window ?? old.completion_window,
            metadata,
            dedupe: old.dedupe === null ? null : shownDedupe(old.dedupe),
          },
          owner,
          plan,
        )
      // What can be told to be wrong at once is, before anything is stored.
      orderOf(old.input_file_id)
      let file: FileRow | undefined
      let projection: BatchProjection | null = null
      const call = idempotentCall(request, 'POST /v1/batches/{batch_id}/retry', {
        batch_id: old.id,
        ...request.body,
      })
      const view = viewOf(request, region)
      /** Nobody asked for the file by itself. */
      const discard = async (): Promise<void> => {
        const made = file
        if (made) await store.write((tx) => removeFile(tx, made, clock.now()))
      }
      const commit = () =>
        idempotency.once(
          call,
          async (tx, now) => {
            if (!file) throw new Error('the lines to send again were not stored')
            return JSON.stringify(showBatch(await createBatch(tx, orderOf(file.id), projection, now), view))
          },
          (write) =>
            // One of a project at a time: each reads and writes as much as an upload.
            projectQueue.run(project_id, async () => {
              const upload = {
                project_id,
                now: clock.now(),
                retention_ms: plan.file_retention_ms,
                file_bytes_max,
              }
              const made = await incoming.receive({ project_id, quotas }, { bytes: 0, zstd: false }, (take) =>
                uploadFailedLines(deps, old, which, { ...upload, take }, (tx, bytes) =>
                  checkQuotas(tx, { project_id, quotas }, { stored_bytes: bytes }),
                ),
              )
              file = made
              wake()
              await whileConnected(request, (signal) => waits.wait({ project_id, file_id: made.id, signal }))
              projection = await readProjection(deps, { ...owner, input_file_id: made.id, metadata })
              return await write()
            }),
        )
      const answer = await commitOrDiscard(commit, discard)
      if (answer.replayed) await discard()
      else wake()
      return sendOnce(reply, answer)
    },
  })
}

/** A batch whose metadata is full cannot name the one that it retries. */
function retryMetadata({ id, metadata }: BatchRow): Metadata {
  const old: Metadata = metadata === null ? {} : JSON.parse(metadata)
  const isFull = Object.keys(old).length >= METADATA_PAIRS_MAX && old.retry_of === undefined
  return isFull ? old : { ...old, retry_of: id }
}
