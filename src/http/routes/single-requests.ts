// POST /v1/requests and POST /v1/requests/{request_id}/cancel: requests that come one at a time, each a line of a batch that
// gathers them (intake/gathered-requests.ts).
import { createHash } from 'node:crypto'
import { unixSeconds } from '../../domain/clock.ts'
import { defaultWindow } from '../../domain/days.ts'
import { invalidParam } from '../../domain/errors.ts'
import { lineRequestId } from '../../domain/ids.ts'
import { offeredWindow } from '../../intake/create-batch.ts'
import { type Gathered, GatheredRequests, RequestLines } from '../../intake/gathered-requests.ts'
import { METADATA_PAIRS_MAX } from '../../jsonl/line-scan.ts'
import { negotiateLanguage } from '../../ledger/limit-error.ts'
import { CreateRequest } from '../../wire/batch.ts'
import { LineRecord } from '../../wire/request-record.ts'
import { planOf } from '../access/caller.ts'
import {
  type CallKey,
  headerText,
  idempotentCall,
  performedTogether,
  sendOnce,
} from '../request/idempotency.ts'
import { type App, type RouteDependencies, route } from '../route.ts'
import { CreateHeaders, ENTITY_CHARACTERS_MAX } from './create-batch.ts'

interface Accepted {
  key: CallKey
  textOf: (at: Gathered) => string
}

export function singleRequestRoutes(app: App, deps: RouteDependencies): void {
  const { store, sealed, clock, models, plans, idempotency, wake, line_bytes_max } = deps
  const lines = new RequestLines()
  const gathered = new GatheredRequests<Accepted>(
    { store, sealed, clock, models, wake, rules: deps.gather },
    (tx, accepted, now) =>
      performedTogether(
        tx,
        accepted.map(({ entry: { record }, at }) => ({
          key: record.key,
          status: 202,
          response: record.textOf(at),
        })),
        now,
      ),
  )

  route(app, 'POST /v1/requests', {
    access: ['batches:write'],
    operation: 'createRequest',
    summary: 'Send one request',
    description:
      'For programs that make one request at a time. It becomes a line of a batch that gathers such requests, and is sent, billed, limited and recorded as every line is. The answer comes at once, without a result: `GET /v1/requests/{request_id}?wait=30s` waits for that. A mistake that would fail a line is an error of the call.',
    answer: LineRecord,
    headers: CreateHeaders,
    errors: [
      'plan_lacks_feature',
      'model_not_found',
      'endpoint_not_supported',
      'usage_limit_exceeded',
      'quota_exceeded',
    ],
    body: CreateRequest,
    takesLines: 'body',
    async handler(request, caller, reply) {
      const { project_id, key_id } = caller
      const { endpoint, completion_window, metadata = null, custom_id = request.id } = request.body
      const body = request.bytesOfBody
      if (body === null)
        throw invalidParam('body', '`body` must be an object: the request as the endpoint takes it.')
      const plan = planOf(plans, caller)
      const offered = plan.completion_windows.map(({ text }) => text)
      const window = offeredWindow(plan, completion_window ?? defaultWindow(offered))
      const header_entity = headerText(request.headers, 'X-Service-Entity', ENTITY_CHARACTERS_MAX)
      const own =
        header_entity !== null && metadata?.entity === undefined
          ? { ...metadata, entity: header_entity }
          : metadata
      if (Object.keys(own ?? {}).length > METADATA_PAIRS_MAX)
        throw invalidParam(
          'metadata',
          `\`metadata\` and the header X-Service-Entity have more than ${METADATA_PAIRS_MAX} pairs.`,
        )
      const { line, model, entity } = lines.lineOf(
        { endpoint, custom_id, metadata: own },
        body,
        models,
        line_bytes_max,
      )
      request.entity = entity
      const sha256 = createHash('sha256').update(body).digest('hex')
      const key = await idempotency.first(
        idempotentCall(request, 'POST /v1/requests', { ...request.body, body: sha256 }),
      )
      if ('text' in key) return sendOnce(reply, key)
      const textOf = ({ batch, line }: Gathered): string => {
        const { conversation = null, tags = null } = { ...own }
        const shown: LineRecord = {
          ...{
            id: lineRequestId(batch.id, line),
            object: 'request',
            kind: 'line',
            batch_id: batch.id,
            custom_id,
          },
          ...{
            line,
            model,
            entity,
            conversation,
            tags,
            status_code: null,
            attempts: [],
            usage: null,
            cost_usd: 0,
          },
          ...{ error: null, created: unixSeconds(clock.now()), status: 'queued', waiting_reason: null },
          ...{ expires_at: unixSeconds(batch.expires_at), response: null },
        }
        return JSON.stringify(shown)
      }
      const language = negotiateLanguage(request.headers['accept-language'])
      const { quotas, file_retention_ms: retention_ms } = plan
      const owner = { project_id, key_id, language, window, quotas, retention_ms }
      const at = await gathered.add({ owner, custom_id, line, model }, { key, textOf })
      return sendOnce(reply, { text: textOf(at), status: 202, replayed: false })
    },
  })
}
