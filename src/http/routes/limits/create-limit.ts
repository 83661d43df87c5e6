// POST /v1/limits
import { newId } from '../../../domain/ids.ts'
import { checkQuotas } from '../../../intake/check-quota.ts'
import { newLimitRow } from '../../../ledger/make-limit.ts'
import { insertLimit, toLimit } from '../../../store/limits.ts'
import { CREATE_LIMIT_RULES, CreateLimit, LimitObject } from '../../../wire/limit.ts'
import { callerOf, planOf } from '../../access/caller.ts'
import { type Idempotency, IdempotencyHeaders } from '../../request/idempotency.ts'
import { route } from '../../route.ts'
import type { RouteDependencies } from '../../route-dependencies.ts'
import type { App } from '../../type-provider.ts'
import { showLimit } from './show-limit.ts'

type Deps = Pick<RouteDependencies, 'plans'> & { idempotency: Idempotency }

export function createLimitRoute(app: App, { plans, idempotency }: Deps): void {
  route(app, {
    method: 'POST',
    url: '/v1/limits',
    access: ['limits:read'],
    doc: {
      operation: 'createLimit',
      summary: 'Create a spending limit',
      description:
        'The limit applies from the next line on, also to running batches. With the scope `entity_type`, every entity of the type has the limit for itself.',
      answer: LimitObject,
      rules: { body: CREATE_LIMIT_RULES },
      headers: IdempotencyHeaders,
      errors: [
        'idempotency_key_reused',
        'idempotency_in_progress',
        'idempotency_cache_not_requested',
        'quota_exceeded',
      ],
    },
    accepts: { body: CreateLimit },
    async handler(request, reply) {
      const caller = callerOf(request)
      const { project_id } = caller
      const { quotas } = planOf(plans, caller)
      const { headers, body } = request
      const call = {
        project_id,
        request_id: request.id,
        route: 'POST /v1/limits' as const,
        headers,
        request: body,
      }
      const answer = await idempotency.once(call, async (tx, now) => {
        const row = newLimitRow(body, { id: newId('limit', now), project_id, created: now })
        await checkQuotas(tx, { project_id, quotas }, { limits: 1 })
        await insertLimit(tx, row)
        return JSON.stringify(showLimit(toLimit(row)))
      })
      if (answer.replayed) reply.header('idempotency-replayed', 'true')
      return reply.code(answer.status).type('application/json; charset=utf-8').send(answer.text)
    },
  })
}
