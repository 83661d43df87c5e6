// GET /v1/batches/{batch_id}/results
import { Type } from 'typebox'
import { ApiError } from '../../../domain/errors.ts'
import { readFinished } from '../../../results/finished-page.ts'
import type { SchemaChecks } from '../../../tables/schema-checks.ts'
import { ResultsQuery } from '../../../wire/results.ts'
import { callerOf } from '../../access/caller.ts'
import { BatchParams } from '../../request/params.ts'
import { attachment } from '../../response/content-disposition.ts'
import type { HeavyReads } from '../../response/heavy-reads.ts'
import { route } from '../../route.ts'
import type { RouteDependencies } from '../../route-dependencies.ts'
import type { App } from '../../type-provider.ts'
import { readResultsTable, TABLE_TYPES } from './results-table.ts'
import { visibleBatch } from './visible-batch.ts'

const LIMIT_DEFAULT = 1000

export function getBatchResultsRoute(
  app: App,
  deps: Pick<RouteDependencies, 'store' | 'sealed' | 'clock'> & { checks: SchemaChecks; reads: HeavyReads },
): void {
  const { store, sealed, clock, checks, reads } = deps
  route(app, {
    method: 'GET',
    url: '/v1/batches/:batch_id/results',
    access: ['batches:read'],
    doc: {
      operation: 'getBatchResults',
      summary: 'Read the finished lines of a batch',
      description:
        'Result lines as they will stand in the output and error files, in the order of the input. ' +
        '`X-Next-After` is the `after` of the next call, `X-Has-More` whether there is more to read now, ' +
        '`X-Batch-Status` how the batch stood before it was read: once it has ended and nothing more is ' +
        'there, all has been read. A page holds about 8 MiB at most. With `format` the whole is a table instead.',
      answer: Type.String(),
      content_type: 'application/x-ndjson',
      errors: ['batch_not_found', 'invalid_request'],
    },
    accepts: { params: BatchParams, querystring: ResultsQuery },
    async handler(request, reply) {
      const { format = 'jsonl', spreadsheet = 'false', ...paging } = request.query
      const { after = 0, limit = LIMIT_DEFAULT, part = 'all', contiguous = 'false' } = paging
      const [param] = Object.keys(paging)
      if (format !== 'jsonl' && param !== undefined)
        throw new ApiError('invalid_request', `\`${param}\` pages JSONL; a table is read as a whole.`, {
          param,
        })
      const { project_id } = callerOf(request)
      const read = await reads.open(project_id, reply.raw)
      const ports = { db: store.read, sealed, now: clock.now() }
      const batch = await visibleBatch(store.read, project_id, request.params.batch_id)
      if (format !== 'jsonl') {
        reply.headers({
          'content-disposition': attachment(`${batch.id}.${format}`),
          'x-batch-status': batch.status,
          'cache-control': 'no-store',
          'x-content-type-options': 'nosniff',
        })
        const order = { format, spreadsheet: spreadsheet === 'true' }
        const table = read.stream(readResultsTable({ ...ports, checks }, batch, order, read))
        table.on('error', (error) =>
          request.log.error({ err: error, batch_id: batch.id }, 'a table broke off'),
        )
        return reply.type(TABLE_TYPES[format]).send(table)
      }
      const order = { after, limit, part, contiguous: contiguous === 'true' }
      const page = await read.turn(() => readFinished(ports, batch.id, order))
      reply.headers({
        'x-next-after': page.nextAfter,
        'x-has-more': String(page.hasMore),
        'x-batch-status': batch.status,
        'cache-control': 'no-store',
        'x-content-type-options': 'nosniff',
      })
      reply.type('application/x-ndjson')
      const text = read.stream(page.text)
      text.on('error', (error) => request.log.error({ err: error, batch_id: batch.id }, 'a page broke off'))
      return reply.send(text)
    },
  })
}
