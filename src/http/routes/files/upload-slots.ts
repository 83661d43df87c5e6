// Counts the uploads of each project that are in progress in this process.
import { quotaExceeded } from '../../../domain/quota.ts'

export class UploadSlots {
  readonly #taken = new Map<string, number>()

  used(project_id: string): number {
    return this.#taken.get(project_id) ?? 0
  }

  /** `limit` null: any number. Throws quota_exceeded. */
  async hold<T>(project_id: string, limit: number | null, act: () => Promise<T>): Promise<T> {
    const used = this.used(project_id)
    if (limit !== null && used >= limit) throw quotaExceeded('uploads', limit, used, 1)
    this.#taken.set(project_id, used + 1)
    try {
      return await act()
    } finally {
      const left = this.used(project_id) - 1
      if (left > 0) this.#taken.set(project_id, left)
      else this.#taken.delete(project_id)
    }
  }
}
