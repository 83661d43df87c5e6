// POST /v1/batches/{batch_id}/retry: a new batch of the failed lines of one that has ended.
import { Type } from 'typebox'
import { RETRIED_FIELDS, retriedFields } from '../../intake/batch-fields.ts'
import { orderBatch } from '../../intake/create-batch.ts'
import { checkRetry, retryFilename } from '../../intake/retry-lines.ts'
import { BatchObject, RETRY_BATCH_RULES, RetryBatch } from '../../wire/batch.ts'
import { planOf } from '../access/caller.ts'
import { IdempotencyHeaders, idempotentCall, sendOnce } from '../request/idempotency.ts'
import { type App, type RouteDependencies, route } from '../route.ts'
import { type BatchCreation, ownerOf } from './batch-creation.ts'
import { checkPlace, visibleBatch } from './batches.ts'
import { ownWebhook } from './webhooks.ts'

export function retryRoute(app: App, deps: RouteDependencies, creation: BatchCreation): void {
  const { store, clock, plans, buckets } = deps
  route(app, 'POST /v1/batches/:batch_id/retry', {
    access: ['batches:write'],
    operation: 'retryBatch',
    summary: 'Run the failed lines of a batch again',
    description: `Makes a new file of the failed lines, byte for byte, and a new batch that names the old one in \`metadata.retry_of\` and has its ${RETRIED_FIELDS.map((name) => `\`${name}\``).join(', ')}, but not its webhook: \`webhook\` gives it one. Where there are very many lines, the answer does not wait for the file: the batch is then \`validating\`, without lines, and what would be an error of the call is in its \`errors\`. The batch that is retried must have ended, and its input file must still exist.`,
    answer: BatchObject,
    rules: { body: RETRY_BATCH_RULES },
    headers: IdempotencyHeaders,
    errors: [
      'batch_not_retryable',
      'plan_lacks_feature',
      'bucket_not_allowed',
      'file_not_processed',
      'usage_limit_exceeded',
      'quota_exceeded',
    ],
    body: Type.Union([RetryBatch, Type.Null()]),
    async handler(request, caller, reply) {
      const { project_id } = caller
      const plan = planOf(plans, caller)
      const { completion_window, webhook, output_url: place, ...which } = request.body ?? {}
      const old = await visibleBatch(store.read, project_id, request.params.batch_id)
      const output_url = place === undefined ? old.output_url : place
      if (output_url !== null) checkPlace(buckets, caller, 'write', output_url)
      const owner = { ...ownerOf(request, old.header_entity), takesAnyFile: 'pending' as const }
      const orderOf = (input_file_id: string) =>
        orderBatch(
          {
            input_file_id,
            endpoint: old.endpoint,
            completion_window: completion_window ?? old.completion_window,
            ...retriedFields(old),
            output_url: output_url ?? undefined,
          },
          owner,
          plan,
        )
      // Errors that show at once are thrown before anything is stored.
      orderOf(old.input_file_id)
      const terms = {
        call: idempotentCall(request, 'POST /v1/batches/{batch_id}/retry', {
          batch_id: old.id,
          ...request.body,
          // A call without results in a bucket is another call.
          ...(place === null && { output_url: false }),
        }),
        orderOf,
        webhook: ownWebhook(deps, caller, webhook),
      }
      const answer = await creation.createOfMadeFile(request, terms, async () => {
        const { input } = await checkRetry(store.read, old, which, clock.now())
        return { file: input, filename: retryFilename(old), made: { batch_id: old.id, which } }
      })
      return sendOnce(reply, answer)
    },
  })
}
