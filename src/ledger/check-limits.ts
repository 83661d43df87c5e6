// Checks the caps of spending limits for a new batch: under every limit that matches any of its lines, the sum of the
// spend, the projected spend of open batches and the projected cost of this batch must stay within the cap. The check
// runs in the transaction that creates the batch, with those limits locked, so of two batches that only fit one at a
// time, the second is rejected. reserve.ts checks the caps again before lines are sent.
import { type Reask, readReask } from '../domain/batch.ts'
import { entityOf } from '../domain/entity.ts'
import { accountsOf, type Payer } from '../domain/limit.ts'
import type { Model } from '../domain/model.ts'
import { addSpend, counted, NO_SPEND, plus, type Spend } from '../domain/money.ts'
import { bytesPerToken } from '../domain/tokens.ts'
import {
  type FileIndex,
  partsOf,
  plusTokens,
  projectLines,
  projectSums,
  type TokenSums,
} from '../jsonl/projection.ts'
import type { Sharing } from '../jsonl/shared-beginnings.ts'
import { insertProjectedSpend } from '../store/ledger.ts'
import { lockMatchingLimits, matchingLimits, readLimitVersion } from '../store/limits.ts'
import type { BatchRow, LimitRow } from '../store/schema.ts'
import type { Reader, Writer } from '../store/store.ts'
import { type Counter, limitSubjects, readUsage } from './counters.ts'
import { batchLimitError, type Language } from './limit-error.ts'
import { projectedByPayer } from './settle.ts'

/** A limit with the projection of a batch; amounts in the limit's unit. */
export interface LimitProjection extends Counter {
  /** The projected spend of the project's open batches. */
  projectedOpen: number
  /** The projected spend of this batch. */
  projected: number
  /** Whether spend, projections of open batches and this batch together exceed the cap. */
  exceeds: boolean
}

/** Checks the caps of a new batch. Throws usage_limit_exceeded if it may exceed the cap of a `block` limit. */
export async function admit(
  tx: Writer,
  project_id: string,
  projection: BatchProjection,
  language: Language,
  now: number,
): Promise<void> {
  if ((await readLimitVersion(tx, project_id)) === 0) return
  const wanted = { project_id, action: 'block' as const, ...limitSubjects(projection.payers) }
  const check = async (limits: readonly LimitRow[]): Promise<void> => {
    const exceeded = (await limitProjections(tx, project_id, limits, projection, now)).filter(
      ({ exceeds }) => exceeds,
    )
    // The limit that resets last is the one to report.
    const latest = exceeded.sort((a, b) => b.window.end - a.window.end)[0]
    if (latest) throw batchLimitError(latest, latest, language, now)
  }
  const limits = await matchingLimits(tx, wanted)
  if (limits.length === 0) return
  // A batch that exceeds a cap already is rejected without waiting for the locks.
  await check(limits)
  await check(await lockMatchingLimits(tx, wanted))
}

/** The projection of the batch under each limit that matches, including `notify` limits. */
export async function projectLimits(
  db: Reader,
  project_id: string,
  projection: BatchProjection,
  now: number,
): Promise<LimitProjection[]> {
  const limits = await matchingLimits(db, { project_id, ...limitSubjects(projection.payers) })
  return await limitProjections(db, project_id, limits, projection, now)
}

/** Records the projected spend of a batch after its insertion: from then on it counts as open. */
export async function recordProjectedSpend(
  tx: Writer,
  { id, project_id }: { id: string; project_id: string },
  { groups, key_id }: BatchProjection,
): Promise<void> {
  const known = groups.filter(({ model }) => model !== null)
  const rows = projectedByPayer(known.map(({ entity, model, spend }) => ({ entity, model, ...spend })))
  await insertProjectedSpend(
    tx,
    rows.map((row) => ({ batch_id: id, project_id, key_id, ...row })),
  )
}

async function limitProjections(
  db: Reader,
  project_id: string,
  limits: readonly LimitRow[],
  projection: BatchProjection,
  now: number,
): Promise<LimitProjection[]> {
  const wanted = { limits, payers: projection.payers, at: now }
  const usages = await readUsage(db, project_id, wanted, 'batch_projected_spend')
  return usages.map(({ unspent: projectedOpen, ...counter }) => {
    const { limit, account, spent } = counter
    const projected = counted(projection.byAccount.get(account) ?? NO_SPEND, limit.metric)
    const exceeds = projected > 0 && spent + projectedOpen + projected > limit.amount
    return { ...counter, projectedOpen, projected, exceeds }
  })
}

// The projected cost of a batch by model and entity, from the sums in the file's index: the file is not read, and
// the time depends on the number of groups, not of lines.

/** Lines of one model for one entity. */
interface ProjectedGroup {
  /** The model that the lines name; null without one. */
  model: string | null
  entity: string | null
  lines: number
  /** Input tokens estimated with `bytes_per_token`. */
  input_tokens: number
  bytes_per_token: number
  output_tokens_max: number
  spend: Spend
  /** Whether the model exists and has a price; without one, the lines cost nothing. */
  priced: boolean
}

export interface BatchProjection {
  groups: readonly ProjectedGroup[]
  key_id: string
  /** The owners of the lines' spend, as far as their entities are known. */
  payers: readonly Payer[]
  byAccount: ReadonlyMap<string, Spend>
  total: Spend
  lines: number
  /** The shared beginnings of the batch's prompts. */
  sharing?: Sharing | undefined
}

/** Columns of a batch for projections: its key, the entity of lines without one, and its reask setting. */
export type ProjectionTerms = Pick<BatchRow, 'key_id'> &
  Partial<Pick<BatchRow, 'metadata' | 'header_entity' | 'reask'>>

export function projectBatch(
  index: Pick<FileIndex, 'groups' | 'unattributed' | 'sharing'>,
  models: ReadonlyMap<string, Model>,
  { key_id, metadata, header_entity = null, reask: json = null }: ProjectionTerms,
): BatchProjection {
  const fallback = entityOf(null, JSON.parse(metadata ?? '{}'), header_entity)
  const reask = readReask(json)
  const named = index.groups.map((sums) => projectGroup(sums, sums.entity ?? fallback, models, reask))
  // The index limits its number of entities; the entities of the rest are known when the lines are reserved.
  const rest = index.unattributed.map((sums) => projectGroup(sums, null, models, reask))
  const groups = [...named, ...rest]
  const byAccount = new Map<string, Spend>()
  const payers: Payer[] = [{ entity: null, key_id, model: null }]
  for (const { entity, model, spend } of groups) {
    const payer = { entity, key_id, model: model !== null && models.has(model) ? model : null }
    payers.push(payer)
    for (const account of accountsOf(payer)) addSpend(byAccount, account, spend)
  }
  return {
    groups,
    key_id,
    payers,
    byAccount,
    total: groups.reduce((sum, { spend }) => plus(sum, spend), NO_SPEND),
    lines: groups.reduce((sum, { lines }) => sum + lines, 0),
    sharing: index.sharing,
  }
}

function projectGroup(
  sums: TokenSums,
  entity: string | null,
  models: ReadonlyMap<string, Model>,
  reask: Reask | null,
): ProjectedGroup {
  const model = sums.model === null ? undefined : models.get(sums.model)
  const sizes = partsOf(sums)
  const parts = sizes.map((part) => {
    const once = model ? projectSums(part, model) : { input_tokens: 0, output_tokens_max: 0 }
    return projectLines(once, model, reask, part.lines, part.reach)
  })
  return {
    model: sums.model,
    entity,
    lines: sizes.reduce((sum, { lines }) => sum + lines, 0),
    ...parts.map(({ tokens }) => tokens).reduce(plusTokens),
    bytes_per_token: bytesPerToken(model?.seen),
    spend: parts.reduce((sum, { spend }) => plus(sum, spend), NO_SPEND),
    priced: model?.priced ?? false,
  }
}
