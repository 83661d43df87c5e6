// GET /v1/requests/{request_id}: an HTTP call of the project, or a line of one of its batches.
import { Refusal } from '../../domain/errors.ts'
import { parseLineRequestId } from '../../domain/ids.ts'
import { readBatch } from '../../store/batches.ts'
import { readHttpRequest } from '../../store/http-requests.ts'
import { RequestRecord } from '../../wire/request-record.ts'
import { callerOf } from '../caller-of.ts'
import { RequestParams } from '../params.ts'
import { route } from '../route.ts'
import type { ServerDeps } from '../server.ts'
import { showHttpRequest } from '../show-http-request.ts'
import type { App } from '../type-provider.ts'

export function getRequestRoute(
  app: App,
  { store, readLineRecord }: Pick<ServerDeps, 'store' | 'readLineRecord'>,
): void {
  async function find(project_id: string, id: string): Promise<object | undefined> {
    const line = parseLineRequestId(id)
    if (line === null) {
      const call = await readHttpRequest(store.read, project_id, id)
      return call && showHttpRequest(call)
    }
    const batch = await readBatch(store.read, project_id, line.batchId)
    return batch && (await readLineRecord(project_id, line.batchId, line.line))
  }

  route(app, {
    method: 'GET',
    url: '/v1/requests/:request_id',
    access: ['batches:read', 'requests:read'],
    doc: {
      operation: 'getRequest',
      summary: 'Read the audit record of a call or of a line',
      answer: RequestRecord,
      errors: ['request_not_found'],
    },
    accepts: { params: RequestParams },
    async handler(request) {
      const record = await find(callerOf(request).project_id, request.params.request_id)
      if (!record) throw new Refusal('request_not_found')
      return record
    },
  })
}
