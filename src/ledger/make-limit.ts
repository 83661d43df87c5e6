// Checks a request for a limit and converts it to a row.
import { invalidParam } from '../domain/errors.ts'
import type { LimitMetric } from '../domain/limit.ts'
import { NANOS_PER_USD, nanosFromUsd } from '../domain/money.ts'
import type { LimitChange } from '../store/limits.ts'
import type { LimitRow } from '../store/schema.ts'
import type { CreateLimit, UpdateLimit } from '../wire/limit.ts'

/** Throws invalid_request with the parameter that is wrong. */
export function newLimitRow(
  request: CreateLimit,
  owner: Pick<LimitRow, 'id' | 'project_id' | 'created'>,
): LimitRow {
  const { scope, metric, amount, window, action, description, notify_at } = request
  return {
    ...owner,
    scope,
    subject: subjectOf(request),
    metric,
    amount: unitsOf(metric, amount),
    window,
    action: action ?? 'block',
    description: description ?? null,
    notify_at: JSON.stringify(fractions(notify_at ?? [])),
  }
}

/** The changes that the request makes to a limit on `metric`. Throws invalid_request with the parameter that is wrong. */
export function limitChange(request: UpdateLimit, metric: LimitMetric): LimitChange {
  const { amount, action, description, notify_at } = request
  return {
    ...(amount === undefined ? {} : { amount: unitsOf(metric, amount) }),
    ...(action === undefined ? {} : { action }),
    ...(description === undefined ? {} : { description }),
    ...(notify_at === undefined ? {} : { notify_at: JSON.stringify(fractions(notify_at ?? [])) }),
  }
}

function subjectOf({ scope, entity, entity_type }: CreateLimit): string {
  const given = { entity: entity ?? null, entity_type: entity_type ?? null }
  for (const name of ['entity', 'entity_type'] as const) {
    if (given[name] !== null && name !== scope)
      throw invalidParam(name, `\`${name}\` does not go with the scope "${scope}".`)
  }
  if (scope === 'project') return ''
  const subject = given[scope]?.trim() ?? null
  if (subject === '') throw invalidParam(scope, `\`${scope}\` is blank.`)
  if (subject === null) throw invalidParam(scope, `\`${scope}\` is required with the scope "${scope}".`)
  if (scope === 'entity_type' && /[:/_]/.test(subject))
    throw invalidParam(scope, '`entity_type` is what stands before the first ":", "/" or "_" of an entity.')
  return subject
}

/** The smallest amount above zero. */
const USD_MIN = 1 / NANOS_PER_USD

/** Nano-dollars or tokens. */
function unitsOf(metric: LimitMetric, amount: number): number {
  if (metric === 'tokens') {
    if (!Number.isSafeInteger(amount))
      throw invalidParam('amount', '`amount` must be a whole number of tokens.')
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

function fractions(notify_at: readonly number[]): readonly number[] {
  if (!notify_at.every((fraction) => fraction > 0 && fraction <= 1))
    throw invalidParam('notify_at', '`notify_at` must hold fractions of the cap: above 0 and at most 1.')
  const ascending = [...new Set(notify_at)].sort((a, b) => a - b)
  if (ascending.length < notify_at.length)
    throw invalidParam('notify_at', '`notify_at` must name each fraction once.')
  return ascending
}
