// /v1/keys: lists, issues and revokes API keys. A key can give only scopes that it has, in its own project, unless it
// has the scope `operator`.
import { createKey } from '../../admin/create-key.ts'
import { CAPPED_SCOPES, PROJECT_SCOPES, SCOPES } from '../../domain/api-key.ts'
import { secondsOrNull, unixSeconds } from '../../domain/clock.ts'
import { ApiError, invalidParam } from '../../domain/errors.ts'
import { shownRetention } from '../../domain/retention.ts'
import { namesIn } from '../../domain/text.ts'
import { checkQuotas } from '../../intake/check-quota.ts'
import { type KeyWithProject, listKeysPage, readKey, revokeKey, revokeTokens } from '../../store/projects.ts'
import { readRow } from '../../store/rows.ts'
import type { Reader } from '../../store/store.ts'
import { RETENTION_RULES } from '../../wire/batch.ts'
import { AMOUNT_RULES, type LimitObject } from '../../wire/limit.ts'
import { ApiKeyObject, CreateApiKey, NewApiKey, RevokeTokens } from '../../wire/project.ts'
import { maybeText } from '../../wire/shape.ts'
import { type Caller, planOf } from '../access/caller.ts'
import { objectRoutes } from '../object-routes.ts'
import { type App, found, type RouteDependencies, route } from '../route.ts'
import { addKeyLimit } from './limits.ts'

export function keyRoutes(
  app: App,
  { store, clock, region, plans, models, issuer }: RouteDependencies,
): void {
  objectRoutes(app, '/v1/keys/:key_id', {
    access: ['keys:read', 'operator'],
    shape: ApiKeyObject,
    list: {
      summary: 'List API keys',
      description:
        'Those of the project; with the scope `operator`, of all projects. Revoked ones are listed too.',
      errors: ['project_not_found'],
    },
    one: { summary: 'Read an API key, without its secret' },
    query: {
      project_id: maybeText('Only keys of this project; operators see those of all projects without it.'),
    },
    find: (caller, id) => visibleKey(store.read, caller, id),
    async rows(caller, { project_id: asked, ...page }) {
      if (asked !== undefined) await checkProject(store.read, caller, asked)
      const project_id = asked ?? (isOperator(caller) ? null : caller.project_id)
      return await listKeysPage(store.read, { ...page, project_id })
    },
    show: showKey,
  })

  route(app, 'POST /v1/keys', {
    access: ['keys:write', 'operator'],
    operation: 'createKey',
    summary: 'Issue an API key',
    description:
      'The answer has the key itself, this once. A key gives no scope that it has not itself. `limit` caps what is spent with the key.',
    answer: NewApiKey,
    errors: ['missing_scope', 'project_not_found', 'quota_exceeded', 'model_not_found'],
    rules: { body: { properties: { limit: AMOUNT_RULES, ...RETENTION_RULES } } },
    body: CreateApiKey,
    takesNoKey: true,
    async handler(request, caller) {
      const {
        name,
        compat,
        retention,
        limit,
        scopes = (limit ? CAPPED_SCOPES : PROJECT_SCOPES).filter((scope) => caller.scopes.has(scope)),
      } = request.body
      const lacking = scopes.filter((scope) => !caller.scopes.has(scope))
      if (lacking.length > 0)
        throw new ApiError(
          'missing_scope',
          `A key cannot give a scope that it has not itself: ${lacking.map((scope) => `\`${scope}\``).join(', ')}.`,
        )
      if (scopes.length === 0) throw invalidParam('scopes', 'Name the `scopes` of the new key.')
      const project_id = request.body.project_id ?? caller.project_id
      const { name: project, plan } = await checkProject(store.read, caller, project_id)
      const { quotas } = planOf(plans, { plan })
      const order = { project, plan, scopes, name, compat, retention: retention ?? undefined }
      let made: LimitObject | undefined
      const { id, key } = await createKey(store, clock, region, order, async (tx, { id }) => {
        await checkQuotas(tx, { project_id, quotas }, { keys: 1, ...(limit && { limits: 1 }) })
        if (limit) made = await addKeyLimit(tx, { id, project_id }, limit, models, clock.now())
      })
      const row = await readKey(store.read, id)
      if (!row) throw new Error(`the key ${id} was not stored`)
      return { ...showKey(row), key, ...(made && { limit: made }) }
    },
  })

  route(app, 'POST /v1/keys/revoke-tokens', {
    access: ['operator'],
    operation: 'revokeTokens',
    summary: 'Revoke tokens of the issuer (`auth.jwt`), in all projects',
    description:
      'From the next call on they are not accepted, whether their subject has called before or not. The answer is the row that says so, which is listed among the keys; asking again changes nothing. There is no way back: the issuer gives out another subject or another token.',
    answer: ApiKeyObject,
    errors: ['key_not_found'],
    rules: { body: { allOf: [{ oneOf: [{ required: ['subject'] }, { required: ['token_id'] }] }] } },
    body: RevokeTokens,
    async handler({ body: { subject, token_id } }, { project_id }) {
      const value = subject ?? token_id
      if (value === undefined || (subject !== undefined && token_id !== undefined))
        throw invalidParam('subject', 'Name a `subject` or a `token_id`, one of the two.')
      if (issuer === null)
        throw new ApiError('key_not_found', 'This service accepts no tokens: it has no `auth.jwt`.')
      const claim = subject === undefined ? 'jti' : 'sub'
      return await store.write(async (tx) => {
        const { id } = await revokeTokens(tx, { issuer, claim, value, project_id }, clock.now())
        return showKey(found(await readKey(tx, id), 'key_not_found'))
      })
    },
  })

  route(app, 'DELETE /v1/keys/:key_id', {
    access: ['keys:write', 'operator'],
    operation: 'revokeKey',
    summary: 'Revoke an API key',
    description:
      'From the next call on it is not accepted, nor are sessions that were made with it. Revoking it again changes nothing. A key with the scope `operator` is revoked by such a key alone.',
    answer: ApiKeyObject,
    handler: ({ params }, caller) =>
      store.write(async (tx) => {
        const row = found(await visibleKey(tx, caller, params.key_id), 'key_not_found')
        if (namesIn(row.scopes, SCOPES).includes('operator') && !isOperator(caller))
          throw new ApiError('missing_scope', 'A key of an operator can be revoked by operators alone.')
        const now = clock.now()
        const isFirst = await revokeKey(tx, row.id, now)
        return showKey(isFirst ? { ...row, revoked_at: now } : row)
      }),
  })
}

function isOperator({ scopes }: Caller): boolean {
  return scopes.has('operator')
}

async function visibleKey(db: Reader, caller: Caller, id: string): Promise<KeyWithProject | undefined> {
  const row = await readKey(db, id)
  return row && (row.project_id === caller.project_id || isOperator(caller)) ? row : undefined
}

/** Reads the project of a new key. Throws project_not_found for another project, unless an operator asks. */
async function checkProject(db: Reader, caller: Caller, id: string): Promise<{ name: string; plan: string }> {
  const project =
    id === caller.project_id || isOperator(caller) ? await readRow(db, 'projects', { id }) : undefined
  return found(project, 'project_not_found', { param: 'project_id' })
}

function showKey(row: KeyWithProject): ApiKeyObject {
  return {
    id: row.id,
    object: 'api_key',
    name: row.name,
    issuer: row.issuer ?? undefined,
    project_id: row.project_id,
    project: row.project_name,
    scopes: namesIn(row.scopes, SCOPES),
    compat: row.compat,
    retention: shownRetention(row.retention),
    created: unixSeconds(row.created),
    last_used_at: secondsOrNull(row.last_used_at),
    revoked_at: secondsOrNull(row.revoked_at),
  }
}
