// What each project may have so many of at once in one API process, by a quota of its plan and by its share of the process.
import type { ServerResponse } from 'node:http'
import { ApiError } from '../../domain/errors.ts'
import { type QuotaName, quotaExceeded } from '../../domain/quota.ts'
import { SharedSlots } from '../../domain/shared-slots.ts'
import type { QuotaHolder } from '../../intake/check-quota.ts'
import { whenClosed } from '../response/when-closed.ts'

const RETRY_S = 1

export class ProjectSlots {
  readonly #quota: QuotaName
  readonly #slots: SharedSlots

  /** `max`: for all projects together. */
  constructor(quota: QuotaName, max: number) {
    this.#quota = quota
    this.#slots = new SharedSlots(max)
  }

  used(project_id: string): number {
    return this.#slots.used(project_id)
  }

  /** Takes a slot until the answer is closed. Throws quota_exceeded and service_unavailable. */
  take({ project_id, quotas }: QuotaHolder, answer: ServerResponse): void {
    const limit = quotas[this.#quota]
    const used = this.used(project_id)
    if (limit !== null && used >= limit) throw quotaExceeded(this.#quota, limit, used, 1)
    const giveBack = this.#slots.take(project_id)
    if (!giveBack) throw new ApiError('service_unavailable', undefined, {}, RETRY_S)
    whenClosed(answer, giveBack)
  }
}
