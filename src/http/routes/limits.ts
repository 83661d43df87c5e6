// Lists, creates, changes and deletes spending limits.
import { Type } from 'typebox'
import { unixSeconds } from '../../domain/clock.ts'
import { ApiError, invalidParam } from '../../domain/errors.ts'
import { newId } from '../../domain/ids.ts'
import type { LimitMetric } from '../../domain/limit.ts'
import type { Model } from '../../domain/model.ts'
import { inMetric, NANOS_PER_USD, nanosFromUsd } from '../../domain/money.ts'
import { checkQuotas } from '../../intake/check-quota.ts'
import { deleteLimit, insertLimit, type LimitChange, listLimits, updateLimit } from '../../store/limits.ts'
import { readOwn } from '../../store/rows.ts'
import type { LimitRow } from '../../store/schema.ts'
import type { Writer } from '../../store/store.ts'
import {
  CREATE_LIMIT_RULES,
  type CreateKeyLimit,
  CreateLimit,
  DeletedLimit,
  LimitObject,
  Scope,
  UpdateLimit,
} from '../../wire/limit.ts'
import { maybeText } from '../../wire/shape.ts'
import { quotaHolder } from '../access/caller.ts'
import { objectRoutes } from '../object-routes.ts'
import { IdempotencyHeaders, idempotentCall, sendOnce } from '../request/idempotency.ts'
import { type App, found, type RouteDependencies, route } from '../route.ts'

export function limitRoutes(app: App, { models, plans, store, wake, idempotency }: RouteDependencies): void {
  route(app, 'POST /v1/limits', {
    access: ['limits:read'],
    operation: 'createLimit',
    summary: 'Create a spending limit',
    description:
      'The limit applies from the next line on, also to running batches. With the scope `entity_type`, every entity of the type has the limit for itself.',
    answer: LimitObject,
    rules: { body: CREATE_LIMIT_RULES },
    headers: IdempotencyHeaders,
    errors: ['quota_exceeded', 'key_not_found', 'model_not_found'],
    body: CreateLimit,
    async handler(request, _caller, reply) {
      const { project_id, quotas } = quotaHolder(request, plans)
      const { body } = request
      const call = idempotentCall(request, 'POST /v1/limits', body)
      const answer = await idempotency.once(call, async (tx, now) => {
        await checkQuotas(tx, { project_id, quotas }, { limits: 1 })
        const row = newLimitRow(body, { project_id, created: now })
        return JSON.stringify(await addLimit(tx, row, models))
      })
      return sendOnce(reply, answer)
    },
  })

  objectRoutes(app, '/v1/limits/:limit_id', {
    access: ['limits:read'],
    shape: LimitObject,
    list: { summary: 'List limits' },
    one: {
      summary: 'Read a limit',
      description: 'The spend under the limit is at `GET /v1/usage/entities`.',
    },
    query: {
      scope: Type.Optional(Scope),
      entity: maybeText('Only limits of this entity itself.'),
      key: maybeText('Only limits of this API key.'),
      model: maybeText('Only limits that count lines of this model alone.'),
    },
    find: ({ project_id }, id) => readOwn(store.read, 'limits', project_id, id),
    rows: ({ project_id }, { entity, ...page }) =>
      listLimits(store.read, project_id, { ...page, entity: entity?.trim() }),
    show: (row) => showLimit(row),
  })

  route(app, 'POST /v1/limits/:limit_id', {
    access: ['limits:write'],
    operation: 'updateLimit',
    summary: 'Change a limit',
    description:
      'Changes the amount, the action, the description or the fractions. A lower amount applies from the next line on, also to running batches; lines in flight finish.',
    answer: LimitObject,
    body: UpdateLimit,
    async handler({ params: { limit_id: id }, body }, { project_id }) {
      const changed = await store.write(async (tx) => {
        const limit = found(await readOwn(tx, 'limits', project_id, id), 'limit_not_found')
        return await updateLimit(tx, project_id, id, limitChange(body ?? {}, limit.metric))
      })
      wake()
      return showLimit(found(changed, 'limit_not_found'))
    },
  })

  route(app, 'DELETE /v1/limits/:limit_id', {
    access: ['limits:write'],
    operation: 'deleteLimit',
    summary: 'Delete a limit',
    answer: DeletedLimit,
    async handler({ params: { limit_id: id } }, { project_id }) {
      if (!(await store.write((tx) => deleteLimit(tx, project_id, id)))) throw new ApiError('limit_not_found')
      wake()
      return { id, object: 'limit' as const, deleted: true as const }
    },
  })
}

/** Shows a limit, without fields that do not apply. */
export function showLimit(row: LimitRow): LimitObject {
  const { id, scope, subject, model, metric, amount, window, action, description, notify_at, created } = row
  return {
    id,
    object: 'limit',
    scope,
    entity: scope === 'entity' ? subject : undefined,
    entity_type: scope === 'entity_type' ? subject : undefined,
    key: scope === 'key' ? subject : undefined,
    model: model || undefined,
    metric,
    amount: inMetric(metric, amount),
    window,
    action,
    description: description ?? undefined,
    notify_at: JSON.parse(notify_at),
    created: unixSeconds(created),
  }
}

/** Inserts a limit; `isNewKey`: for a key not inserted yet. Throws key_not_found and model_not_found. */
export async function addLimit(
  tx: Writer,
  row: LimitRow,
  models: ReadonlyMap<string, Model>,
  isNewKey = false,
): Promise<LimitObject> {
  const { project_id } = row
  if (row.model !== '') found(models.get(row.model), 'model_not_found', { param: 'model' })
  if (row.scope === 'key' && !isNewKey)
    found(await readOwn(tx, 'api_keys', project_id, row.subject), 'key_not_found', { param: 'key' })
  await insertLimit(tx, row)
  return { ...showLimit(row), ...unpricedModels(row, models) }
}

/** Creates the limit of a key that is created in the same transaction; throws as newLimitRow and addLimit. */
export async function addKeyLimit(
  tx: Writer,
  { id, project_id }: { id: string; project_id: string },
  limit: CreateKeyLimit,
  models: ReadonlyMap<string, Model>,
  now: number,
): Promise<LimitObject> {
  const row = newLimitRow({ ...limit, scope: 'key', key: id }, { project_id, created: now })
  return await addLimit(tx, row, models, true)
}

function unpricedModels({ metric, model }: LimitRow, models: ReadonlyMap<string, Model>) {
  const counted = [...models.values()].filter(({ id }) => model === '' || model === id)
  const unpriced = counted.filter(({ priced }) => !priced).map(({ id }) => id)
  return metric === 'cost_usd' && unpriced.length > 0 ? { unpriced_models: unpriced } : {}
}

// Checks a request for a limit and converts it to a row.

/** Makes the row of a limit. Throws invalid_request with the parameter. */
export function newLimitRow(request: CreateLimit, owner: Pick<LimitRow, 'project_id' | 'created'>): LimitRow {
  const { scope, metric, amount, window, action, description, notify_at } = request
  return {
    id: newId('limit', owner.created),
    ...owner,
    scope,
    subject: subjectOf(request),
    model: request.model?.trim() ?? '',
    metric,
    amount: unitsOf(metric, amount),
    window,
    action: action ?? 'block',
    description: description ?? null,
    notify_at: ascending(notify_at),
  }
}

/** The changes of a request to a limit on `metric`. Throws invalid_request with the parameter. */
export function limitChange(request: UpdateLimit, metric: LimitMetric): LimitChange {
  const { amount, action, description, notify_at } = request
  return {
    ...(amount === undefined ? {} : { amount: unitsOf(metric, amount) }),
    ...(action === undefined ? {} : { action }),
    ...(description === undefined ? {} : { description }),
    ...(notify_at === undefined ? {} : { notify_at: ascending(notify_at) }),
  }
}

const SUBJECTS = ['entity', 'entity_type', 'key'] as const

function subjectOf(request: CreateLimit): string {
  const { scope } = request
  for (const name of SUBJECTS) {
    if (request[name] != null && name !== scope)
      throw invalidParam(name, `\`${name}\` does not go with the scope "${scope}".`)
  }
  if (scope === 'project') {
    named(request, 'model', false)
    return ''
  }
  const subject = named(request, scope, true)
  if (scope === 'model') return ''
  named(request, 'model', false)
  if (scope === 'entity_type' && /[:/_]/.test(subject))
    throw invalidParam(scope, '`entity_type` is what stands before the first ":", "/" or "_" of an entity.')
  return subject
}

function named(request: CreateLimit, field: 'model' | (typeof SUBJECTS)[number], isNeeded: boolean): string {
  const name = request[field]?.trim() ?? null
  if (name === '') throw invalidParam(field, `\`${field}\` is blank.`)
  if (name === null && isNeeded)
    throw invalidParam(field, `\`${field}\` is required with the scope "${request.scope}".`)
  return name ?? ''
}

/** The smallest amount above zero in USD. */
const USD_MIN = 1 / NANOS_PER_USD

/** Converts an amount to nano-dollars, tokens or lines. */
function unitsOf(metric: LimitMetric, amount: number): number {
  if (metric !== 'cost_usd') {
    if (!Number.isSafeInteger(amount))
      throw invalidParam('amount', `\`amount\` must be a whole number of ${metric}.`)
    return amount
  }
  if (amount > 0 && amount < USD_MIN)
    throw invalidParam('amount', '`amount` must be 0, or at least 0.000000001 USD.')
  try {
    return nanosFromUsd(amount)
  } catch {
    throw invalidParam('amount', '`amount` must be an amount in USD below 9 million.')
  }
}

function ascending(notify_at: CreateLimit['notify_at']): string {
  return JSON.stringify(notify_at?.toSorted((a, b) => a - b) ?? [])
}
