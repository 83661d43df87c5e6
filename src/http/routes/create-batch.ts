// POST /v1/batches
import { Type } from 'typebox'
import { unixSeconds } from '../../domain/clock.ts'
import { entityOf } from '../../domain/entity.ts'
import { ApiError } from '../../domain/errors.ts'
import { negotiateLanguage } from '../../domain/language.ts'
import { type Limit, WHOLE_PROJECT } from '../../domain/limit.ts'
import type { Model } from '../../domain/model.ts'
import { usd } from '../../domain/money.ts'
import { ProjectQueue } from '../../domain/project-queue.ts'
import { sumOf } from '../../domain/spend.ts'
import { createBatch, orderBatch, usableInput, ValidationWaits } from '../../intake/create-batch.ts'
import { readProjection } from '../../intake/read-index.ts'
import { type LimitProjection, projectLimits } from '../../ledger/admit.ts'
import type { BatchProjection } from '../../ledger/project-batch.ts'
import { readFile, readIndexBytes } from '../../store/files.ts'
import { BatchEstimate, BatchObject, CREATE_BATCH_RULES, CreateBatch } from '../../wire/batch.ts'
import { callerOf, planOf, viewOf } from '../access/caller.ts'
import {
  headerText,
  type Idempotency,
  IdempotencyHeaders,
  idempotentCall,
  sendOnce,
} from '../request/idempotency.ts'
import { whileConnected } from '../response/when-closed.ts'
import { type App, type RouteDependencies, route } from '../route.ts'
import { showBatch } from './batches.ts'
import { fileIdOf, shownFileId } from './files.ts'
import { showLimit } from './limits.ts'

const ENTITY_CHARACTERS_MAX = 512
/** Creating a batch of a file with a larger index is expensive: such calls of one project run one after the other. */
const INDEX_BYTES_AT_ONCE_MAX = 64 * 1024

const CreateHeaders = Type.Object({
  ...IdempotencyHeaders.properties,
  'X-Service-Entity': Type.Optional(
    Type.String({
      minLength: 1,
      maxLength: ENTITY_CHARACTERS_MAX,
      description:
        'The entity to attribute usage to, where neither a line nor the batch names one in its metadata.',
    }),
  ),
  'Accept-Language': Type.Optional(
    Type.String({ description: 'The language of limit errors, also in results.' }),
  ),
})

type Deps = Pick<
  RouteDependencies,
  'store' | 'sealed' | 'clock' | 'models' | 'region' | 'plans' | 'wake' | 'wait_for_file_ms'
> & {
  idempotency: Idempotency
}

const Query = Type.Object({
  dry_run: Type.Optional(
    Type.Enum(['true', 'false'], {
      description:
        '`true`: creates no batch, and returns its projected cost and the limits that apply to it.',
    }),
  ),
})

export function createBatchRoute(app: App, deps: Deps): void {
  const { store, clock, idempotency, region, plans, wake, wait_for_file_ms } = deps
  const projectQueue = new ProjectQueue({ atOnce: Number.POSITIVE_INFINITY, perProject: 1 })
  const waits = new ValidationWaits(store, clock, wait_for_file_ms)
  app.addHook('preClose', async () => waits.stop())
  route(app, {
    method: 'POST',
    url: '/v1/batches',
    access: ['batches:write'],
    doc: {
      operation: 'createBatch',
      summary: 'Create a batch',
      description:
        'With an `Idempotency-Key`, a repeated call creates no second batch: it gets the first answer again (`Idempotency-Replayed: true`), or a 409 under `Idempotency-Mode: implicit`.',
      answer: Type.Union([BatchObject, BatchEstimate]),
      headers: CreateHeaders,
      rules: { body: CREATE_BATCH_RULES },
      errors: [
        'plan_lacks_feature',
        'file_not_found',
        'file_not_processed',
        'usage_limit_exceeded',
        'quota_exceeded',
      ],
    },
    accepts: { body: CreateBatch, querystring: Query },
    async handler(request, reply) {
      const caller = callerOf(request)
      const { headers, body } = request
      const header_entity = headerText(headers, 'X-Service-Entity', ENTITY_CHARACTERS_MAX)
      request.entity = entityOf(null, body.metadata, header_entity)
      const owner = {
        project_id: caller.project_id,
        key_id: caller.key_id,
        header_entity,
        language: negotiateLanguage(headers['accept-language']),
        traceparent: request.traceContext,
        takesAnyFile: request.compat === 'openai',
      }
      const view = viewOf(request, region)
      const input_file_id = fileIdOf(body.input_file_id)
      const order = orderBatch({ ...body, input_file_id }, owner, planOf(plans, caller))
      const { project_id } = caller
      const processed = (): Promise<void> =>
        whileConnected(request, (signal) => waits.wait({ project_id, file_id: input_file_id, signal }))
      const oneAtATime = async <T>(act: () => Promise<T>): Promise<T> => {
        const indexBytes = await readIndexBytes(store.read, project_id, input_file_id, clock.now())
        return indexBytes > INDEX_BYTES_AT_ONCE_MAX ? await projectQueue.run(project_id, act) : await act()
      }
      const project = (): Promise<BatchProjection | null> =>
        readProjection(deps, { ...owner, input_file_id, metadata: body.metadata ?? null })
      if (request.query.dry_run === 'true') {
        await processed()
        const projection = await oneAtATime(project)
        usableInput(await readFile(store.read, caller.project_id, input_file_id, clock.now()))
        if (!projection) throw new ApiError('file_not_processed')
        const limitProjections = await projectLimits(store.read, caller.project_id, projection, clock.now())
        return showEstimate(shownFileId(input_file_id, view), projection, limitProjections, deps.models)
      }
      const call = idempotentCall(request, 'POST /v1/batches', { ...body, input_file_id })
      let projection: BatchProjection | null = null
      const answer = await idempotency.once(
        call,
        async (tx, now) => JSON.stringify(showBatch(await createBatch(tx, order, projection, now), view)),
        async (write) => {
          await processed()
          return await oneAtATime(async () => {
            projection = await project()
            return await write()
          })
        },
      )
      if (!answer.replayed) wake()
      return sendOnce(reply, answer)
    },
  })
}

/** A projection as the API shows it. */
function showEstimate(
  input_file_id: string,
  projection: BatchProjection,
  limitProjections: readonly LimitProjection[],
  models: ReadonlyMap<string, Model>,
): BatchEstimate {
  const { groups, total, lines } = projection
  const unpriced = new Set(groups.flatMap(({ priced, model }) => (priced || model === null ? [] : [model])))
  return {
    object: 'batch.estimate',
    input_file_id,
    accepted: !limitProjections.some(({ exceeds, limit }) => exceeds && limit.action === 'block'),
    lines,
    input_tokens: groups.reduce((sum, group) => sumOf(sum, group.input_tokens), 0),
    output_tokens_max: groups.reduce((sum, group) => sumOf(sum, group.output_tokens_max), 0),
    cost_usd: usd(total.cost_nanos),
    groups: groups.map(({ spend, model, entity, priced, lines, ...tokens }) => ({
      model,
      entity,
      priced,
      lines,
      input_tokens: tokens.input_tokens,
      output_tokens_max: tokens.output_tokens_max,
      bytes_per_token: tokens.bytes_per_token,
      cost_usd: usd(spend.cost_nanos),
    })),
    unpriced_models: [...unpriced].filter((model) => models.has(model)),
    unknown_models: [...unpriced].filter((model) => !models.has(model)),
    limits: limitProjections.map(showLimitProjection),
  }
}

function showLimitProjection(limitProjection: LimitProjection): BatchEstimate['limits'][number] {
  const { limit, spender, spent, projectedOpen: open, projected: needed, exceeds, window } = limitProjection
  return {
    limit: showLimit(limit),
    entity: spender === WHOLE_PROJECT ? null : spender,
    spent: inMetric(limit, spent),
    open: inMetric(limit, open),
    needed: inMetric(limit, needed),
    exceeds,
    resets_at: unixSeconds(window.end),
  }
}

function inMetric({ metric }: Limit, units: number): number {
  return metric === 'cost_usd' ? usd(units) : units
}
