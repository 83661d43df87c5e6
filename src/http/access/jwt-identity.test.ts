// Calls a real server with tokens that are signed by real keys, which a real server shows.
import assert from 'node:assert/strict'
import { createHmac } from 'node:crypto'
import { createServer } from 'node:http'
import { describe, test } from 'node:test'
import { exportJWK, exportSPKI, generateKeyPair, type JWTPayload, SignJWT, UnsecuredJWT } from 'jose'
import { type Listening, listen } from '../../../test/support/listen.ts'
import { type Answer, type TestServer, testServer } from '../../../test/support/test-server.ts'
import { emptySums } from '../../jsonl/projection.ts'
import { revokeKey } from '../../store/projects.ts'
import type { ServerDependencies } from '../server.ts'
import type { JwtRules } from './jwt-identity.ts'

const ISSUER = 'https://issuer.example'
const SUBJECT = 'system:serviceaccount:team-a:etl'
const PATH = '/v1/batches'
const GROUPS = [{ ...emptySums('sim-1', null), lines: 1, input_tokens: 10, output_tokens_max_given: 10 }]

type Pair = Awaited<ReturnType<typeof generateKeyPair>>

/** An issuer with keys by their `kid`, which counts reads of its keys. */
class Issuer implements AsyncDisposable {
  readonly keys = new Map<string, Pair>()
  reads = 0
  isDown = false
  #listening!: Listening

  static async start(...kids: string[]): Promise<Issuer> {
    const issuer = new Issuer()
    for (const kid of kids) await issuer.add(kid)
    issuer.#listening = await listen(
      createServer((_request, response) => {
        issuer.reads++
        if (issuer.isDown) response.writeHead(503).end()
        // With a byte order mark, as servers on .NET may begin.
        else void issuer.#shown().then((keys) => response.end(`\ufeff${JSON.stringify({ keys })}`))
      }),
    )
    return issuer
  }

  async add(kid: string): Promise<void> {
    this.keys.set(kid, await generateKeyPair('ES256'))
  }

  async #shown(): Promise<object[]> {
    const keys = [...this.keys].map(async ([kid, { publicKey }]) => ({
      ...(await exportJWK(publicKey)),
      kid,
    }))
    return await Promise.all(keys)
  }

  get url(): string {
    return `${this.#listening.url}/jwks`
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.#listening.close()
  }
}

interface World extends AsyncDisposable {
  issuer: Issuer
  server: TestServer
  /** The time of the clock in Unix seconds. */
  now(): number
  token(claims?: JWTPayload, kid?: string, pair?: Pair): Promise<string>
  get(token: string, path?: string, more?: Partial<Parameters<TestServer['call']>[2]>): Promise<Answer>
}

async function world(rules: Partial<JwtRules> = {}, more: Partial<ServerDependencies> = {}): Promise<World> {
  const issuer = await Issuer.start('first')
  const server = await testServer({
    jwt: {
      ...{ issuer: ISSUER, audience: ['offpeak'], jwks_url: issuer.url, jwks_file: null },
      ...{ project: 'project', scopes: null, entity: null, ...rules },
    },
    ...more,
  })
  const now = (): number => Math.floor(server.clock.now() / 1000)
  return {
    issuer,
    server,
    now,
    async token(claims = {}, kid = 'first', pair = issuer.keys.get(kid)) {
      const standard = { iss: ISSUER, aud: 'offpeak', sub: SUBJECT, exp: now() + 600, project: 'default' }
      const payload = Object.fromEntries(
        Object.entries({ ...standard, ...claims }).filter(([, one]) => one !== null),
      )
      return await new SignJWT(payload)
        .setProtectedHeader({ alg: 'ES256', ...(kid !== '' && { kid }) })
        .sign(pair!.privateKey)
    },
    get: (key, path = PATH, call = {}) => server.call('GET', path, { key, ...call }),
    async [Symbol.asyncDispose]() {
      await server[Symbol.asyncDispose]()
      await issuer[Symbol.asyncDispose]()
    },
  }
}

async function outcomes(
  w: World,
  cases: Record<string, string | Promise<string>>,
): Promise<Record<string, string>> {
  const seen: Record<string, string> = {}
  for (const [name, token] of Object.entries(cases)) {
    const { outcome, error } = await w.get(await token)
    seen[name] = `${outcome}: ${String(error.message).replace('The token is not accepted: ', '')}`
  }
  return seen
}

describe('a token of the issuer', () => {
  test('is a key of the project that it names, with the scopes of keys that name none', async () => {
    await using w = await world()
    const token = await w.token()
    assert.equal((await w.get(token)).outcome, '200')
    const session = await w.get(token, '/console/session')
    assert.deepEqual(session.json.project, { id: w.server.key.project_id, name: 'default', plan: 'payg' })
    const issued = await w.server.call('POST', '/v1/keys', { key: token, body: {} })
    assert.equal(issued.outcome, '403 missing_scope', 'a key would outlive the token')
    const azure = await w.server.call('GET', '/openai/batches?api-version=1', {
      key: null,
      headers: { 'api-key': token },
    })
    assert.equal(azure.outcome, '200')
    assert.equal(w.issuer.reads, 1, 'the keys are kept')
  })

  test('is not accepted with another time, audience, issuer, key or algorithm', async () => {
    await using w = await world()
    const pair = w.issuer.keys.get('first')!
    const header = (alg: string): string =>
      Buffer.from(JSON.stringify({ alg, kid: 'first' })).toString('base64url')
    const payload = (await w.token()).split('.')[1]!
    const signed = `${header('HS256')}.${payload}`
    const hmac = createHmac('sha256', await exportSPKI(pair.publicKey))
      .update(signed)
      .digest('base64url')
    const good = await w.token()
    const seen = await outcomes(w, {
      expired: w.token({ exp: w.now() - 61 }),
      early: w.token({ nbf: w.now() + 62 }),
      forever: w.token({ exp: null } as never),
      nobody: w.token({ sub: null } as never),
      audience: w.token({ aud: ['other', 'another'] }),
      'no audience': w.token({ aud: null } as never),
      issuer: w.token({ iss: `${ISSUER}/` }),
      'another key': w.token({}, 'first', await generateKeyPair('ES256')),
      changed: `${good.slice(0, -8)}AAAAAAAA`,
      none: new UnsecuredJWT({ sub: SUBJECT }).encode(),
      'none with a key': `${header('none')}.${payload}.`,
      hmac: `${signed}.${hmac}`,
      nonsense: 'eyJ.eyJ.x',
    })
    const algorithms = 'none of RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, ES512, EdDSA'
    const broken = '401 invalid_api_key: its signature is wrong, or it is no signed JWT.'
    assert.deepEqual(seen, {
      expired: '401 invalid_api_key: it has expired.',
      early: '401 invalid_api_key: its claim `nbf` is not met.',
      forever: '401 invalid_api_key: its claim `exp` is missing.',
      nobody: '401 invalid_api_key: its claim `sub` is missing.',
      audience: '401 invalid_api_key: its audience (`aud`) is not `offpeak`.',
      'no audience': '401 invalid_api_key: its audience (`aud`) is not `offpeak`.',
      issuer: `401 invalid_api_key: its issuer (\`iss\`) is not \`${ISSUER}\`.`,
      'another key': broken,
      changed: broken,
      none: `401 invalid_api_key: its algorithm is ${algorithms}.`,
      'none with a key': `401 invalid_api_key: its algorithm is ${algorithms}.`,
      hmac: `401 invalid_api_key: its algorithm is ${algorithms}.`,
      nonsense: broken,
    })
    const skewed = [
      await w.token({ exp: w.now() - 58 }),
      await w.token({ nbf: w.now() + 58, aud: ['x', 'offpeak'] }),
    ]
    for (const token of skewed)
      assert.equal((await w.get(token)).outcome, '200', 'clocks differ by up to a minute')
  })

  test('that names no project of the service gets a 403 that says so', async () => {
    await using w = await world({ project: 'kubernetes.io.namespace' })
    await w.server.issue({ project: 'team-a' })
    const named = (value: unknown): Promise<string> => w.token({ 'kubernetes.io': { namespace: value } })
    assert.equal((await w.get(await named('team-a'))).outcome, '200')
    assert.equal((await w.get(await named(['team-a', 'others']))).outcome, '200', 'one of a list is known')
    const claim = 'The claim `kubernetes.io.namespace` of the token names'
    assert.deepEqual(
      await outcomes(w, { unknown: named('team-b'), both: named(['default', 'team-a']), none: w.token() }),
      {
        unknown: `403 unknown_project: ${claim} "team-b", and this service has no such project.`,
        both: `403 unknown_project: ${claim} several projects: "default", "team-a". A token acts for one.`,
        none: '403 unknown_project: The token has no claim `kubernetes.io.namespace`, which would name its project.',
      },
    )
    const projects = await w.server.deps.store.read.selectFrom('projects').selectAll().execute()
    assert.equal(projects.length, 2, 'no project is made')
  })

  test('has the scopes that a claim lists, and no others', async () => {
    await using w = await world({ scopes: 'realm_access.roles' })
    const scopesOf = async (roles: unknown): Promise<unknown> => {
      const claims = roles === undefined ? {} : { realm_access: { roles } }
      return (await w.get(await w.token(claims), '/console/session')).json.scopes
    }
    assert.deepEqual(await scopesOf(['offline_access', 'operator', 'batches:read']), [
      'batches:read',
      'operator',
    ])
    assert.deepEqual(await scopesOf('openid files:read usage:read'), ['files:read', 'usage:read'])
    assert.deepEqual(await scopesOf(undefined), [])
    const lacking = await w.get(await w.token())
    assert.equal(lacking.outcome, '403 missing_scope')
    assert.match(JSON.stringify(lacking.json), /The token lacks the scope/)
  })

  test('names the entity of batches that name none', async () => {
    await using w = await world({ entity: 'email' })
    const key = await w.token({ email: 'Zo\u00eb@example.com' })
    const file_id = await w.server.processedFile()
    const entityOf = async (options: { headers?: Record<string, string> }): Promise<unknown> => {
      const { request_id } = await w.server.createBatch(file_id, { key, ...options })
      return (await w.get(w.server.key.key, `/v1/requests/${request_id}`)).json.entity
    }
    assert.equal(await entityOf({}), 'Zo\u00eb@example.com')
    assert.equal(await entityOf({ headers: { 'x-service-entity': 'team:x' } }), 'team:x')
    const again = { 'idempotency-key': 'k' }
    const first = await w.server.createBatch(file_id, { key, headers: again })
    const retried = await w.server.createBatch(file_id, { key, headers: again })
    assert.equal(retried.id, first.id)
    const other = await w.token({ email: 'bob@example.com' })
    const reused = await w.server.createBatch(file_id, { key: other, headers: again })
    assert.equal(reused.outcome, '409 idempotency_key_reused', 'another entity is another call')
  })

  test('is one among the keys: audited by subject and issuer, capped, limited in rate, and not counted', async () => {
    await using w = await world({}, { requests_per_minute: 5 })
    const token = await w.token()
    const made = await w.server.call('POST', '/v1/limits', {
      key: token,
      body: { scope: 'project', metric: 'tokens', amount: 5, window: 'day' },
    })
    assert.equal(made.outcome, '200')
    const { json } = await w.get(w.server.key.key, `/v1/requests/${made.request_id}`)
    assert.deepEqual([json.subject, json.issuer, json.person], [SUBJECT, ISSUER, undefined])
    const { data } = await w.get(w.server.key.key, '/v1/requests')
    const listed = data.find(({ id }) => id === made.request_id)
    assert.deepEqual([listed?.subject, listed?.issuer], [SUBJECT, ISSUER])
    const { data: keys } = await w.get(w.server.key.key, '/v1/keys')
    assert.deepEqual([keys[0]?.name, keys[0]?.issuer, keys[0]?.id], [SUBJECT, ISSUER, json.api_key_id])
    const capped = { scope: 'key', key: json.api_key_id, metric: 'requests', amount: 0, window: 'day' }
    assert.equal((await w.server.call('POST', '/v1/limits', { body: capped })).outcome, '200')
    const file_id = await w.server.processedFile({
      key: token,
      groups: GROUPS,
    })
    assert.equal((await w.server.createBatch(file_id, { key: token })).outcome, '429 usage_limit_exceeded')
    for (let calls = 3; calls < 5; calls++) assert.equal((await w.get(token)).status, 200)
    assert.equal(
      (await w.get(await w.token({ iat: 1 }))).outcome,
      '429 rate_limit_exceeded',
      'of the subject',
    )
    assert.equal((await w.get(await w.token({ sub: 'another' }))).outcome, '200')
  })

  test('signs nobody in to the console, neither as a key nor by a link', async () => {
    await using w = await world()
    const api_key = await w.token()
    const headers = { 'x-offpeak-console': '1' }
    const signIn = await w.server.call('POST', '/console/session', { key: null, body: { api_key }, headers })
    assert.equal(signIn.outcome, '401 invalid_api_key')
    assert.equal(
      (await w.server.call('POST', '/console/links', { key: api_key })).outcome,
      '403 missing_scope',
    )
    await using other = await testServer()
    assert.equal(
      (await other.call('GET', PATH, { key: api_key })).outcome,
      '401 invalid_api_key',
      'not configured',
    )
  })
})

describe('a revoked token', () => {
  test('is not accepted by its ID, its subject, or the row of its subject in a project', async () => {
    await using w = await world()
    const { store, clock } = w.server.deps
    const { key: operator } = await w.server.issue({ scopes: ['operator'] })
    const revoke = (body: object, key = operator): Promise<Answer> =>
      w.server.call('POST', '/v1/keys/revoke-tokens', { key, body })
    const one = await w.token({ jti: 'one' })
    const two = await w.token({ jti: 'two' })
    const { json: revoked } = await revoke({ token_id: 'one' })
    assert.deepEqual([revoked.name, revoked.issuer, revoked.scopes], ['token one', ISSUER, []])
    assert.equal(revoked.revoked_at, w.now())
    assert.equal((await w.get(one)).outcome, '401 invalid_api_key')
    assert.equal((await w.get(two)).outcome, '200')
    const session = await w.get(two, '/console/session')
    await store.write((tx) => revokeKey(tx, String(session.json.api_key_id), clock.now()))
    assert.match(
      String((await w.get(two)).error.message),
      /access of system:serviceaccount:team-a:etl to the project/,
    )
    await w.server.issue({ project: 'other' })
    const elsewhere = await w.token({ project: 'other' })
    assert.equal((await w.get(elsewhere)).outcome, '200', 'in another project it has a row of its own')
    assert.equal((await revoke({ subject: SUBJECT }, w.server.key.key)).outcome, '403 missing_scope')
    const { request_id, json: subject } = await revoke({ subject: SUBJECT })
    assert.equal((await w.get(elsewhere)).outcome, '401 invalid_api_key')
    const record = await w.get(w.server.key.key, `/v1/requests/${request_id}`)
    assert.match(JSON.stringify(record.json.response), /subject system:serviceaccount:team-a:etl/)
    await w.server.clock.advance(60_000)
    assert.deepEqual((await revoke({ subject: SUBJECT })).json, subject, 'asked again, it changes nothing')
    for (const wrong of [{}, { subject: 'a', token_id: 'b' }, { subject: '' }])
      assert.equal((await revoke(wrong)).outcome, '400 invalid_request')
    await using other = await testServer()
    const { key } = await other.issue({ scopes: ['operator'] })
    const none = await other.call('POST', '/v1/keys/revoke-tokens', { key, body: { subject: 'a' } })
    assert.match(String(none.error.message), /no `auth.jwt`/)
  })

  test('ends its stream of live updates, as one that has expired does', async () => {
    await using w = await world()
    const authorization = `Bearer ${await w.token({ exp: w.now() + 5 })}`
    const headers = { authorization, accept: 'text/event-stream' }
    const answer = await fetch(`${w.server.url}/v1/live`, { headers })
    const pieces = answer.body!.pipeThrough(new TextDecoderStream())[Symbol.asyncIterator]()
    assert.match((await pieces.next()).value ?? '', /^event: update/)
    let end = pieces.next()
    for (let s = 0; s < 20; s++) await w.server.clock.advance(1000)
    assert.equal((await end).value, ': still here\n\n')
    end = pieces.next()
    while (w.now() < 1_700_000_070) await w.server.clock.advance(1000)
    for (let found = await end; !found.done; found = await pieces.next())
      assert.match(found.value, /still here/)
  })
})

describe('the keys of the issuer', () => {
  test('are read again for a key that is not known, at most once in ten seconds', async () => {
    await using w = await world()
    assert.equal((await w.get(await w.token())).outcome, '200')
    await w.issuer.add('second')
    const stranger = await w.token({}, 'third', await generateKeyPair('ES256'))
    for (let i = 0; i < 5; i++)
      assert.match(String((await w.get(stranger)).error.message), /shows no key for it/)
    const rotated = await w.token({}, 'second')
    assert.equal((await w.get(rotated)).outcome, '401 invalid_api_key')
    assert.equal(w.issuer.reads, 1)
    await w.server.clock.advance(10_000)
    const all = await Promise.all([rotated, stranger, rotated].map((token) => w.get(token)))
    assert.deepEqual(
      all.map(({ status }) => status),
      [200, 401, 200],
    )
    assert.equal(w.issuer.reads, 2)
  })

  test('are read again for a token that a replaced key has signed, with a name or without, at most once in ten seconds', async () => {
    await using w = await world()
    assert.equal((await w.get(await w.token())).outcome, '200')
    for (const kid of ['', 'first']) {
      await w.issuer.add('first')
      await w.server.clock.advance(10_000)
      const { reads } = w.issuer
      const token = await w.token({}, kid, w.issuer.keys.get('first')!)
      const stranger = await w.token({}, kid, await generateKeyPair('ES256'))
      const all = await Promise.all([token, stranger, token].map((one) => w.get(one)))
      assert.deepEqual(
        all.map(({ status }) => status),
        [200, 401, 200],
      )
      assert.equal(w.issuer.reads, reads + 1)
    }
  })

  test('are all tried for a token that names none of them', async () => {
    await using w = await world()
    await w.issuer.add('second')
    for (const pair of [...w.issuer.keys.values()])
      assert.equal((await w.get(await w.token({}, '', pair))).outcome, '200')
    const other = await w.token({}, '', await generateKeyPair('ES256'))
    const [first] = w.issuer.keys.values()
    const late = await w.token({ exp: w.now() - 120 }, '', first)
    assert.deepEqual(await outcomes(w, { other, late }), {
      other: '401 invalid_api_key: its signature is wrong, or it is no signed JWT.',
      late: '401 invalid_api_key: it has expired.',
    })
  })

  test('are no longer accepted five minutes after the issuer has withdrawn them', async () => {
    await using w = await world()
    const token = await w.token()
    assert.equal((await w.get(token)).outcome, '200')
    await w.issuer.add('second')
    w.issuer.keys.delete('first')
    await w.server.clock.advance(299_999)
    assert.equal((await w.get(token)).outcome, '200')
    await w.server.clock.advance(1)
    assert.equal((await w.get(token)).outcome, '401 invalid_api_key')
  })

  test('are used for a day while the issuer cannot be read, and then tokens get a 503', async () => {
    await using w = await world()
    const forever = await w.token({ exp: w.now() + 900_000 })
    w.issuer.isDown = true
    const early = await w.get(forever)
    assert.deepEqual([early.outcome, early.headers.get('retry-after')], ['503 service_unavailable', '10'])
    assert.equal((await w.get(forever)).status, 503)
    assert.equal(w.issuer.reads, 1, 'not at each call')
    w.issuer.isDown = false
    await w.server.clock.advance(10_000)
    assert.equal((await w.get(forever)).outcome, '200')
    w.issuer.isDown = true
    await w.server.clock.advance(24 * 3_600_000 - 1)
    assert.equal((await w.get(forever)).outcome, '200')
    await w.server.clock.advance(1)
    assert.equal((await w.get(forever)).outcome, '503 service_unavailable')
    assert.equal((await w.get(w.server.key.key)).outcome, '200', 'API keys need no issuer')
  })
})
