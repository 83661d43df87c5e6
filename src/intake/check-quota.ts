// Enforces the quotas of a project in the transaction that adds an object. Far from a quota no lock is needed; near
// it, transactions take a lock on the project, so concurrent calls cannot exceed it.

import { type Plan, QUOTA_NAMES, quotaExceeded } from '../domain/plan.ts'
import { sumQueuedTokens } from '../store/ledger.ts'
import { isStored, lockProject, readUse, type StoredQuota } from '../store/projects.ts'
import type { Writer } from '../store/store.ts'

/** A number above the calls of one project that can run concurrently. */
const AT_ONCE_MAX = 256

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
