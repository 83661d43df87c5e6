// GET /v1/quotas
import { QUOTA_NAMES } from '../../domain/plan.ts'
import { isStored, readUse } from '../../intake/check-quota.ts'
import type { Incoming } from '../../intake/incoming.ts'
import { sumPendingUploads } from '../../store/uploads.ts'
import { QuotasObject } from '../../wire/project.ts'
import { callerOf, planOf } from '../access/caller.ts'
import type { ProjectSlots } from '../response/heavy-reads.ts'
import { type App, type RouteDependencies, route } from '../route.ts'

type Deps = Pick<RouteDependencies, 'store' | 'plans'> & {
  incoming: Incoming
  downloads: ProjectSlots
  streams: ProjectSlots
}

export function quotaRoute(app: App, { store, plans, incoming, downloads, streams }: Deps): void {
  route(app, {
    method: 'GET',
    url: '/v1/quotas',
    access: 'any key',
    doc: {
      operation: 'getQuotas',
      summary: 'Read the quotas of the project and their use',
      description:
        'Each API process counts uploads, downloads and streams by itself. A call that would exceed a quota is answered with 429 `quota_exceeded`.',
      answer: QuotasObject,
    },
    async handler(request): Promise<QuotasObject> {
      const caller = callerOf(request)
      const plan = planOf(plans, caller)
      const used = await readUse(store.read, caller.project_id, QUOTA_NAMES.filter(isStored))
      const pending = await sumPendingUploads(store.read, caller.project_id)
      const row = (name: (typeof QUOTA_NAMES)[number], use: number | null) => ({
        limit: plan.quotas[name],
        used: use,
      })
      return {
        object: 'quotas',
        plan: plan.name,
        quotas: {
          stored_bytes: row('stored_bytes', used.stored_bytes ?? 0),
          open_batches: row('open_batches', used.open_batches ?? 0),
          queued_lines: row('queued_lines', used.queued_lines ?? 0),
          limits: row('limits', used.limits ?? 0),
          webhooks: row('webhooks', used.webhooks ?? 0),
          entities_per_batch: row('entities_per_batch', null),
          uploads: row('uploads', incoming.files(caller.project_id) + pending.uploads),
          downloads: row('downloads', downloads.used(caller.project_id)),
          streams: row('streams', streams.used(caller.project_id)),
          keys: row('keys', used.keys ?? 0),
        },
      }
    },
  })
}
