// Describes the caller of a request: the project, the key and the plan, and the form in which the caller's client sends
// calls and reads answers.
import assert from 'node:assert'
import type { IncomingMessage } from 'node:http'
import type { FastifyRequest } from 'fastify'
import { Type } from 'typebox'
import { COMPAT_MODES, type CompatMode, isCompatMode, SCOPES, type Scope } from '../../domain/api-key.ts'
import { ApiError, invalidParam } from '../../domain/errors.ts'
import type { Plan } from '../../domain/plan.ts'
import { type Retention, readRetention } from '../../domain/retention.ts'
import { namesIn } from '../../domain/text.ts'
import type { QuotaHolder } from '../../intake/check-quota.ts'
import type { KeyWithProject } from '../../store/projects.ts'
import { isMessagesPath } from '../../wire/message-batch.ts'

export interface Caller {
  project_id: string
  project_name: string
  plan: string
  key_id: string
  scopes: ReadonlySet<Scope>
  /** The compatibility mode of answers, where a call has none of its own; null: the API's own form. */
  compat: CompatMode | null
  /** The retention of content in the caller's batches; null: the plan's. */
  retention: Retention | null
  /** The end of the caller's console session (Unix ms); null for a call with a key. */
  session_expires: number | null
  /** The person that a trusted proxy names; else null. */
  person: string | null
  /** The token of the call: its end (Unix ms), and the rows that would revoke it; null for other calls. */
  token: { expires: number; revoked_by: readonly string[] } | null
}

/** The caller with a key's project and scopes. `session_expires`: null without a console session. */
export function callerOfKey(key: KeyWithProject, session_expires: number | null): Caller {
  return {
    project_id: key.project_id,
    project_name: key.project_name,
    plan: key.plan,
    key_id: key.id,
    scopes: new Set(namesIn(key.scopes, SCOPES)),
    // The console reads objects in the API's own form.
    compat: session_expires === null ? key.compat : null,
    retention: readRetention(key.retention),
    session_expires,
    person: null,
    token: null,
  }
}

/** The caller of a call; every endpoint that is not public has one. */
export function callerOf({ caller }: Pick<FastifyRequest, 'caller'>): Caller {
  assert(caller, 'a public endpoint has no caller')
  return caller
}

const PLAN_RETRY_S = 5

/** The plan of a caller, or of another project. Throws service_unavailable for a plan that only other processes know, during a rollout. */
export function planOf(plans: ReadonlyMap<string, Plan>, caller: Pick<Caller, 'plan'>): Plan {
  const plan = plans.get(caller.plan)
  if (!plan)
    throw new ApiError(
      'service_unavailable',
      `This process of the service does not know the plan of the project, \`${caller.plan}\`.`,
      {},
      PLAN_RETRY_S,
    )
  return plan
}

/** The project of the call, with the quotas of its plan. */
export function quotaHolder(
  request: Pick<FastifyRequest, 'caller'>,
  plans: ReadonlyMap<string, Plan>,
): QuotaHolder {
  const caller = callerOf(request)
  return { project_id: caller.project_id, quotas: planOf(plans, caller).quotas }
}

// The compatibility mode of a call: from its header, else from the key.

const HEADER = 'X-Offpeak-Compat'
/** The header's value for the API's own form, for a call whose key has another one. */
const OWN = 'none'

export const CompatHeader = Type.Object({
  [HEADER]: Type.Optional(
    Type.Enum([...COMPAT_MODES, OWN], {
      description: 'Answers as clients of that API expect them, whatever the key says.',
    }),
  ),
})

/** The compatibility mode in the header; undefined without the header. Throws invalid_request. */
export function compatOfHeader(headers: NodeJS.Dict<string | string[]>): CompatMode | null | undefined {
  const value = headers[HEADER.toLowerCase()]
  if (value === undefined) return undefined
  if (value === OWN) return null
  if (typeof value === 'string' && isCompatMode(value)) return value
  const known = [...COMPAT_MODES, OWN].map((mode) => `"${mode}"`).join(' or ')
  throw invalidParam(HEADER, `The header ${HEADER} must be ${known}.`)
}

/** The form in which objects are shown. */
export interface View {
  region: string
  compat: CompatMode | null
}

export function viewOf({ compat }: Pick<FastifyRequest, 'compat'>, region: string): View {
  return { region, compat }
}

// Converts calls of other clients to those of OpenAI's, before they are routed. Azure OpenAI's have the endpoints of
// OpenAI under `/openai`, the key in the header `api-key`, and a version of the API in the query. Anthropic's have the
// key in the header `x-api-key`, and in the query a mark of the beta.

/** The paths of Azure's clients. Other endpoints are only under `/v1`, where a proxy may close them. */
const AZURE_PATH =
  /^\/openai(?:\/v1|\/deployments\/[^/?]+)?(\/(?:files|uploads|batches|models|chat|completions|embeddings|responses)(?:\/[^?]*)?)(?:\?(.*))?$/

export function isAzurePath(url: string): boolean {
  return AZURE_PATH.test(url)
}

/** The URL to route. Headers of other clients are converted to those of OpenAI's clients. */
export function urlOfCall({ url = '/', headers }: Pick<IncomingMessage, 'url' | 'headers'>): string {
  if (isMessagesPath(url)) {
    takeKey(headers, 'x-api-key')
    const [path = '', query = ''] = url.split('?', 2)
    return withQuery(path, query, /^beta(=|$)/)
  }
  const [, path, query = ''] = AZURE_PATH.exec(url) ?? []
  if (path === undefined) return url
  takeKey(headers, 'api-key')
  // Azure has the statuses and fields of OpenAI.
  headers['x-offpeak-compat'] ??= 'openai'
  return withQuery(`/v1${path}`, query, /^api-version(=|$)/)
}

function takeKey(headers: IncomingMessage['headers'], name: string): void {
  const key = headers[name]
  if (typeof key === 'string') headers.authorization ??= `Bearer ${key}`
}

function withQuery(path: string, query: string, ignored: RegExp): string {
  const rest = query.split('&').filter((pair) => !ignored.test(pair))
  return `${path}${rest.join('&') === '' ? '' : `?${rest.join('&')}`}`
}
