// Enforces the quotas of a project in the transaction that adds an object. Far from a quota no lock is needed; near
// it, transactions take a lock on the project, so concurrent calls cannot exceed it.

import { type Plan, QUOTA_NAMES, type QuotaName, quotaExceeded } from '../domain/plan.ts'
import { sumQueuedTokens } from '../store/ledger.ts'
import { countKeys, lockProject, sumOpenBatches, sumStoredBytes } from '../store/projects.ts'
import { countRows } from '../store/rows.ts'
import type { Reader, Writer } from '../store/store.ts'

/** A number above the calls of one project that can run concurrently. */
const AT_ONCE_MAX = 256

/** Quotas that are not counted in the database; each of the others is one count there. */
const NOT_STORED = ['queued_tokens', 'entities_per_batch', 'uploads', 'downloads', 'streams'] as const
type StoredQuota = Exclude<QuotaName, (typeof NOT_STORED)[number]>
export type Use = Partial<Record<StoredQuota, number>>

export interface QuotaHolder {
  project_id: string
  quotas: Plan['quotas']
}

/** Checks quotas before a call adds `more`. Throws quota_exceeded. */
export async function checkQuotas(tx: Writer, { project_id, quotas }: QuotaHolder, more: Use): Promise<void> {
  const names = QUOTA_NAMES.filter(isStored).filter(
    (name) => more[name] !== undefined && quotas[name] !== null,
  )
  if (names.length === 0) return
  const passed = (used: Use, calls: number): StoredQuota | undefined =>
    names.find((name) => (used[name] ?? 0) + (more[name] ?? 0) * calls > (quotas[name] ?? 0))
  if (passed(await readUse(tx, project_id, names), AT_ONCE_MAX) === undefined) return
  await lockProject(tx, project_id)
  const used = await readUse(tx, project_id, names)
  const name = passed(used, 1)
  if (name !== undefined) throw quotaExceeded(name, quotas[name] ?? 0, used[name] ?? 0, more[name] ?? 0)
}

/**
 * Throws quota_exceeded if a batch would exceed the quota of a model's queued tokens. `more`: its projected tokens by
 * model. Lines that end no longer count.
 */
export async function checkQueuedTokens(
  tx: Writer,
  { project_id, quotas: { queued_tokens: limit } }: QuotaHolder,
  more: ReadonlyMap<string, number>,
): Promise<void> {
  if (limit === null || more.size === 0) return
  await lockProject(tx, project_id)
  const used = await sumQueuedTokens(tx, project_id)
  for (const [model, tokens] of more) {
    const before = used.get(model) ?? 0
    if (before + tokens > limit) throw quotaExceeded('queued_tokens', limit, before, tokens, model)
  }
}

export async function readUse(db: Reader, project_id: string, names: readonly StoredQuota[]): Promise<Use> {
  const use: Use = {}
  if (names.includes('stored_bytes')) use.stored_bytes = await sumStoredBytes(db, project_id)
  if (names.includes('open_batches') || names.includes('queued_lines')) {
    const { batches, lines } = await sumOpenBatches(db, project_id)
    Object.assign(use, { open_batches: batches, queued_lines: lines })
  }
  if (names.includes('limits')) use.limits = await countRows(db, 'limits', { project_id })
  // Webhooks of batches do not count.
  if (names.includes('webhooks'))
    use.webhooks = await countRows(db, 'webhooks', { project_id, batch_id: null })
  if (names.includes('keys')) use.keys = await countKeys(db, project_id)
  return use
}

export function isStored(name: QuotaName): name is StoredQuota {
  return !NOT_STORED.some((other) => other === name)
}
