// GET /v1/usage/entities
import { Readable } from 'node:stream'
import { Type } from 'typebox'
import { ApiError } from '../../../domain/errors.ts'
import { usageCsv } from '../../../ledger/usage-csv.ts'
import { listUsageGroups, sumUsage } from '../../../store/usage-report.ts'
import { UsageObject } from '../../../wire/usage.ts'
import { callerOf } from '../../access/caller.ts'
import { attachment } from '../../response/content-disposition.ts'
import { route } from '../../route.ts'
import type { RouteDependencies } from '../../route-dependencies.ts'
import type { App } from '../../type-provider.ts'
import { showUsage } from './show-usage.ts'
import { readUsageQuery, USAGE_RULES, UsageQuery } from './usage-query.ts'

/** For JSON, which is built in memory; CSV is streamed and has no bound. */
const GROUPS_MAX = 10_000
const CSV = 'text/csv'

export function getUsageRoute(app: App, { store }: Pick<RouteDependencies, 'store'>): void {
  route(app, {
    method: 'GET',
    url: '/v1/usage/entities',
    access: ['limits:read', 'usage:read'],
    doc: {
      operation: 'getUsage',
      summary: 'Read usage and cost',
      description:
        'The settled usage: a line counts on the UTC day on which it finished, as soon as its result is committed.',
      answer: UsageObject,
      rules: { querystring: USAGE_RULES },
      also: { [CSV]: Type.String() },
    },
    accepts: { querystring: UsageQuery },
    async handler(request, reply) {
      const { filter, by } = readUsageQuery(callerOf(request).project_id, request.query)
      if (request.query.format === 'csv') {
        reply
          .header('content-disposition', attachment('usage.csv'))
          .header('x-content-type-options', 'nosniff')
        return reply.type(`${CSV}; charset=utf-8`).send(Readable.from(usageCsv(store.read, filter, by)))
      }
      const sums = await sumUsage(store.read, filter)
      if (by.length === 0) return showUsage(filter, sums, null)
      const rows = await listUsageGroups(store.read, filter, by, GROUPS_MAX + 1)
      if (rows.length > GROUPS_MAX)
        throw new ApiError(
          'invalid_request',
          `There are more than ${GROUPS_MAX} groups. Ask for fewer days or entities, or for \`format=csv\`.`,
          { param: 'group_by' },
        )
      return showUsage(filter, sums, { by, rows })
    },
  })
}
