// GET /v1/requests/{request_id}: an HTTP call of the project, or a line of one of its batches.
import type { LineRecordText } from '../../../audit/read-line-record.ts'
import { ApiError } from '../../../domain/errors.ts'
import { parseLineRequestId } from '../../../domain/ids.ts'
import { readAnonymousRequest } from '../../../store/anonymous-requests.ts'
import { readBatch } from '../../../store/batches.ts'
import { readHttpRequest } from '../../../store/http-requests.ts'
import { RequestRecord } from '../../../wire/request-record.ts'
import { type Caller, callerOf } from '../../access/caller.ts'
import { RequestParams } from '../../request/params.ts'
import type { HeavyReads } from '../../response/heavy-reads.ts'
import { route } from '../../route.ts'
import type { RouteDependencies } from '../../route-dependencies.ts'
import type { App } from '../../type-provider.ts'
import { showAnonymousRequest, showHttpRequest } from './show-request.ts'

export function getRequestRoute(
  app: App,
  deps: Pick<RouteDependencies, 'store' | 'models' | 'readLineRecord'> & { reads: HeavyReads },
): void {
  const { store, models, readLineRecord, reads } = deps

  async function readLine({ project_id, scopes }: Caller, id: string): Promise<LineRecordText | undefined> {
    const line = parseLineRequestId(id)
    const batch = line && (await readBatch(store.read, project_id, line.batchId))
    const names = scopes.has('operator') ? null : models
    return batch ? await readLineRecord(project_id, batch.id, line.line, names) : undefined
  }

  async function readCall({ project_id, scopes }: Caller, id: string): Promise<object | undefined> {
    const call = await readHttpRequest(store.read, project_id, id)
    if (call) return showHttpRequest(call)
    const refused = scopes.has('operator') ? await readAnonymousRequest(store.read, id) : undefined
    return refused && showAnonymousRequest(refused)
  }

  route(app, {
    method: 'GET',
    url: '/v1/requests/:request_id',
    access: ['batches:read', 'requests:read', 'operator'],
    doc: {
      operation: 'getRequest',
      summary: 'Read the audit record of a call or of a line',
      description:
        'The scope `operator` also shows calls without a valid key, such as those that were answered with a 401, and addresses of model servers where others read names.',
      answer: RequestRecord,
      errors: ['request_not_found'],
    },
    accepts: { params: RequestParams },
    async handler(request, reply) {
      const caller = callerOf(request)
      const id = request.params.request_id
      if (parseLineRequestId(id) === null) {
        const call = await readCall(caller, id)
        if (!call) throw new ApiError('request_not_found')
        return call
      }
      const read = await reads.open(caller.project_id, reply.raw)
      const record = await read.turn(() => readLine(caller, id))
      if (!record) throw new ApiError('request_not_found')
      const text = read.stream(record.text)
      text.on('error', (error) => request.log.error({ err: error }, 'an audit record broke off'))
      return reply.type('application/json; charset=utf-8').header('content-length', record.bytes).send(text)
    },
  })
}
