// POST, GET and DELETE /console/session: signs a browser in, says who is signed in, and signs out. A key or a
// one-time link becomes a row (hash, key, expiry) and a cookie; the key itself is not kept. POST /console/links makes
// such a link.
import { Type } from 'typebox'
import { hashConsoleToken, isIdentity, makeConsoleToken } from '../../../domain/api-key.ts'
import { secondsOrNull, unixSeconds } from '../../../domain/clock.ts'
import { ApiError, invalidParam } from '../../../domain/errors.ts'
import {
  deleteConsoleSession,
  hasConsoleLink,
  insertConsoleSession,
  takeConsoleLink,
} from '../../../store/projects.ts'
import {
  ConsoleLink,
  ConsoleSession,
  ConsoleSessionEnded,
  CreateConsoleSession,
} from '../../../wire/project.ts'
import { text } from '../../../wire/shape.ts'
import {
  authenticate,
  authenticateSession,
  consoleTokenOf,
  requireConsoleHeader,
  setConsoleCookie,
} from '../../access/auth.ts'
import type { Caller } from '../../access/caller.ts'
import { type App, publicRoute, type RouteDependencies, route } from '../../route.ts'

const SESSION_MS = 7 * 24 * 3_600_000
const LINK_MS = 60_000
const LINK_ENDED = 'The link was used before or has expired. Make another one.'

const ConsoleHeader = Type.Object({
  'X-Offpeak-Console': Type.Optional(text('`1`: required where the cookie of a session authenticates.')),
})

export function consoleSessionRoutes(app: App, deps: RouteDependencies): void {
  const { store, clock, region, countCall } = deps
  publicRoute(app, 'POST /console/session', {
    doc: {
      operation: 'createConsoleSession',
      summary: 'Sign a browser in',
      description:
        'With an API key, or with the token of a one-time link. The answer sets the cookie `offpeak_console`, which then authenticates like the key, until the key is revoked, the session expires or it is deleted; a session whose cookie came with the call ends. Calls that change something carry `X-Offpeak-Console: 1`, this one too.',
      answer: ConsoleSession,
      headers: ConsoleHeader,
      errors: ['invalid_request', 'invalid_api_key', 'cross_site_request', 'rate_limit_exceeded'],
    },
    body: CreateConsoleSession,
    async handler(request, reply) {
      requireConsoleHeader(request.headers)
      const { api_key, link } = request.body
      if ((api_key === undefined) === (link === undefined))
        throw invalidParam('api_key', 'Give `api_key` or `link`.')
      const now = clock.now()
      const { token, token_sha256 } = makeConsoleToken()
      const replaced = consoleTokenOf(request.headers.cookie)
      const linkHash = hashConsoleToken(link ?? '') ?? ''
      // The call needs no key: without a valid key or link, nothing is written.
      const owner =
        link === undefined ? await authenticate(store.read, region, `Bearer ${api_key}`) : undefined
      if (owner) await countCall(owner, reply)
      else if (!(await hasConsoleLink(store.read, linkHash, now)))
        throw new ApiError('invalid_api_key', LINK_ENDED)
      const caller = await store.write(async (tx) => {
        const signedIn = owner?.key_id ?? (await takeConsoleLink(tx, linkHash, now))
        if (signedIn === undefined) throw new ApiError('invalid_api_key', LINK_ENDED)
        const expires = now + SESSION_MS
        await insertConsoleSession(tx, {
          token_sha256,
          kind: 'session',
          key_id: signedIn,
          created: now,
          expires,
        })
        if (replaced !== null) await deleteConsoleSession(tx, replaced)
        return await authenticateSession(tx, token_sha256, now)
      })
      // From here on the call has a caller, and so a record.
      request.caller = caller
      reply.header('set-cookie', setConsoleCookie(token, SESSION_MS / 1000, request.headers))
      return showSession(caller, deps)
    },
  })

  route(app, 'GET /console/session', {
    access: 'any key',
    operation: 'getConsoleSession',
    summary: 'Who is signed in',
    answer: ConsoleSession,
    handler: async (_request, caller) => showSession(caller, deps),
  })

  route(app, 'DELETE /console/session', {
    access: 'any key',
    operation: 'deleteConsoleSession',
    summary: 'Sign out',
    answer: ConsoleSessionEnded,
    headers: ConsoleHeader,
    errors: ['cross_site_request'],
    async handler(request, _caller, reply) {
      const token_sha256 = consoleTokenOf(request.headers.cookie)
      if (token_sha256 !== null) await store.write((tx) => deleteConsoleSession(tx, token_sha256))
      reply.header('set-cookie', setConsoleCookie('', 0, request.headers))
      return { object: 'console_session' as const, deleted: true as const }
    },
  })

  route(app, 'POST /console/links', {
    access: 'any key',
    operation: 'createConsoleLink',
    summary: 'Make a link that signs a browser in once',
    description: 'It works for a minute. `offpeak console` opens it.',
    answer: ConsoleLink,
    errors: ['cross_site_request', 'missing_scope'],
    async handler(_request, { key_id, session_expires }) {
      if (session_expires !== null || isIdentity(key_id))
        throw new ApiError(
          'missing_scope',
          'Neither a session nor a token can make a link; authenticate with an API key.',
        )
      const created = clock.now()
      const expires = created + LINK_MS
      const { token, token_sha256 } = makeConsoleToken()
      await store.write((tx) =>
        insertConsoleSession(tx, { token_sha256, kind: 'link', key_id, created, expires }),
      )
      // The part after # is not sent to any server, so no log contains it.
      const path = `/console#link=${token}`
      return { object: 'console_link' as const, token, path, expires_at: unixSeconds(expires) }
    },
  })
}

/** Shows the session of the console: the caller and the service. */
export function showSession(
  caller: Caller,
  { region, version, proxyIdentity }: Pick<RouteDependencies, 'region' | 'version' | 'proxyIdentity'>,
): ConsoleSession {
  const { project_id, project_name, plan, key_id, scopes, session_expires, person } = caller
  return {
    object: 'console_session',
    project: { id: project_id, name: project_name, plan },
    api_key_id: key_id,
    scopes: [...scopes],
    region,
    version,
    expires_at: secondsOrNull(session_expires),
    ...(person !== null && { person, sign_out: proxyIdentity?.signOut ?? null }),
  }
}
