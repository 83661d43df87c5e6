// The doctor, on stores that a real service has filled and that something has then happened to.
import assert from 'node:assert/strict'
import { open, readFile, rename, rm, utimes, writeFile } from 'node:fs/promises'
import { createServer } from 'node:http'
import { join } from 'node:path'
import { test } from 'node:test'
import type { Finding } from '../../src/admin/examine.ts'
import type { Reconciled } from '../../src/admin/reconcile.ts'
import { doctor } from '../../src/compose/doctor.ts'
import { keys } from '../../src/compose/keys.ts'
import { openStores } from '../../src/compose/stores.ts'
import { systemClock } from '../../src/domain/clock.ts'
import { freePort } from '../../src/engines/engine-access.ts'
import { BatchServer } from '../fakes/batch-server.ts'
import { launchOnly, runOffpeak } from '../fakes/offpeak.ts'
import { echo, send, testUpstream } from '../fakes/upstream.ts'
import { configFor, line, TestService } from '../service.ts'
import { listen } from '../support/listen.ts'

interface Report {
  ok: boolean
  blobs: number
  opened: number
  findings: Finding[]
}

async function offpeak(service: TestService, ...args: string[]) {
  return await runOffpeak(args, { launch: launchOnly({ loadConfig: () => service.config, doctor }) })
}

test('doctor remote says what is wrong with a batch API', async () => {
  await using remote = await BatchServer.start({
    answer: ({ headers }, usual) =>
      headers.authorization === 'Bearer the-right-key' ? usual() : { status: 401, body: { error: 'no' } },
  })
  const { port } = remote
  const upstream = (name: string, path: string, key: string, at = port, type = 'openai-batch'): string =>
    `      - {type: ${type}, name: ${name}, base_url: "http://127.0.0.1:${at}${path}", headers: {authorization: "Bearer ${key}"}}`
  const closed = await freePort()
  await using service = await TestService.start(
    `models:
  - id: m
    upstreams:
${upstream('good', '/v1', 'the-right-key')}
${upstream('wrong-key', '/v1', 'another-key')}
${upstream('no-batches', '/v1/other', 'the-right-key')}
${upstream('nobody', '/v1', 'the-right-key', closed)}
${upstream('messages', '/v1', 'the-right-key', port, 'anthropic-batch')}`,
    { worker: false },
  )
  const { code, out } = await offpeak(service, 'doctor', 'remote')
  assert.equal(code, 1)
  assert.match(out, /^good \(http:\S+\/v1\): it answers and takes the key\.$/m)
  assert.match(out, /^wrong-key .*it asks for a key \(401\)\. Name it with api_key_env/m)
  assert.match(out, /^no-batches .*there is no batch API.* Check base_url/m)
  assert.match(out, /^messages .*there is no batch API: GET \/messages\/batches is not found/m)
  assert.match(out, /^nobody .*it cannot be reached \(.*ECONNREFUSED/m)
})

test('doctor remote says whether the metrics of servers with live traffic can be read', async () => {
  const pages: Record<string, string> = {
    '/metrics': 'vllm:num_requests_running{engine="0"} 1\n',
    '/other': 'up 1\n',
    '/api/v1/query': '{"status":"success","data":{"resultType":"matrix","result":[]}}',
  }
  const server = createServer(({ url }, response) => {
    const page = pages[new URL(url ?? '', 'http://h').pathname]
    response.writeHead(page ? 200 : 404).end(page ?? '{}')
  })
  const { url, close } = await listen(server)
  const upstream = (name: string, live: string): string =>
    `      - {type: openai, name: ${name}, base_url: "${url}/v1", live: ${live}}`
  await using service = await TestService.start(
    `models:
  - id: m
    upstreams:
${upstream('vllm', '{}')}
${upstream('other', `{metrics: "${url}/other"}`)}
${upstream('router', `{metrics: {url: "${url}", promql: '{namespace="llm"}'}}`)}
${upstream('silent', '{metrics: off}')}`,
    { worker: false },
  )
  const { code, out } = await offpeak(service, 'doctor', 'remote')
  await close()
  assert.equal(code, 1)
  assert.match(out, /^vllm \(metrics at http:\S+\/metrics\): they say what the server does\.$/m)
  assert.match(out, /^other .*it shows no metrics of vLLM, SGLang or llama.cpp\. Check live\.metrics/m)
  assert.match(out, /^router .*no series .* for \{namespace="llm"\} in the last 1m\. Check/m)
  assert.doesNotMatch(out, /^silent/m)
})

test('doctor remote says whether the keys of tokens can be read, and keys revoke --subject revokes what they name', async () => {
  const server = createServer((_request, response) => response.end('{"keys": [{"kty": "oct", "k": "x"}]}'))
  const { url, close } = await listen(server)
  const jwt = `auth: {jwt: {issuer: "https://i.example", audience: a, project: p, jwks_url: "${url}/keys"}}`
  await using service = await TestService.start(jwt, { worker: false })
  const { code, out } = await offpeak(service, 'doctor', 'remote')
  await close()
  assert.equal(code, 1)
  assert.match(
    out,
    /^tokens of https:\/\/i\.example \(keys at http:\S+\/keys\): they cannot be read \(holds no public key .*\)\. Check auth\.jwt\.jwks_url/m,
  )
  const launch = launchOnly({ loadConfig: () => service.config, keys })
  const revoke = (...args: string[]) => runOffpeak(['keys', 'revoke', ...args], { launch })
  const first = await revoke('--subject', 'etl')
  assert.deepEqual([first.code, first.err], [0, 'etl is revoked.\n'])
  assert.match((await revoke('--subject', 'etl')).err, /etl is already revoked/)
  assert.equal((await revoke('--token-id', 'etl')).code, 0)
  assert.match(
    (await revoke('--token-id', 'a', '--subject', 'b')).err,
    /give the ID of a key, --subject or --token-id/,
  )
  const { out: listed } = await runOffpeak(['keys', 'list'], { launch })
  assert.match(listed, /subject etl of https:\/\/i\.example/)
})

async function examined(service: TestService, ...args: string[]): Promise<Report & { code: number }> {
  const { code, out, err } = await offpeak(service, 'doctor', '--json', ...args)
  assert.equal(err, '')
  const report: Report = JSON.parse(out)
  return { code, ...report }
}

async function books(service: TestService): Promise<Reconciled & { code: number; ok: boolean }> {
  const { code, out, err } = await offpeak(service, 'doctor', 'books', '--json')
  assert.equal(err, '')
  return { code, ...JSON.parse(out) }
}

/** A service that has run one batch with answers and failures. */
async function filled(base_url: string) {
  const service = await TestService.start(configFor(base_url))
  service.tampered = true
  const batch = await service.run([line('a'), line('bad'), line('c'), line('d', 'd', { model: 'nope' })], {
    metadata: { entity: 'user:1' },
  })
  assert.deepEqual(batch.request_counts, { total: 4, completed: 2, failed: 2 })
  return { service, batch }
}

async function partlyFailing() {
  return await testUpstream((call) => {
    if (call.body.messages[0]?.content === 'bad') send(call.response, 400, '{"error":{"message":"no"}}')
    else echo(call)
  })
}

function pathOf(service: TestService, key: string): string {
  return join(service.folder, 'data', 'blobs', 'objects', key)
}

async function outputBlob(service: TestService, batch_id: string): Promise<string> {
  const chunk = await service.stores.store.read
    .selectFrom('chunks')
    .select('output_blob')
    .where('batch_id', '=', batch_id)
    .executeTakeFirstOrThrow()
  assert(chunk.output_blob)
  return chunk.output_blob
}

test('sound stores are called so, and balanced books too', async () => {
  await using upstream = await partlyFailing()
  const { service, batch } = await filled(upstream.base_url)
  await using _ = service
  const report = await examined(service)
  assert.deepEqual([report.code, report.ok, report.findings], [0, true, []])
  assert.ok(report.blobs >= 4)
  assert.equal(report.opened, report.blobs)
  const text = await offpeak(service, 'doctor', '--quick')
  assert.match(text.out, /^Nothing is damaged: the database is sound; \d+ blobs, \d+ opened \(.*\)\.\n$/)

  const found = await books(service)
  assert.deepEqual([found.code, found.ok, found.mismatches], [0, true, []])
  assert.deepEqual([found.batches, found.lines, found.cost_nanos], [1, 4, batch.cost_usd * 1e9])
  const spoken = await offpeak(service, 'doctor', 'books')
  assert.match(
    spoken.out,
    /^The books balance: 1 project, 1 batch, 4 result lines read, \$0\.00000600 in all\.\n$/,
  )
})

test('results that were deleted are neither damage nor a difference', async () => {
  await using upstream = await partlyFailing()
  const { service, batch } = await filled(upstream.base_url)
  await using _ = service
  await service.json('DELETE', `/v1/files/${batch.output_file_id}`)
  await service.json('DELETE', `/v1/files/${batch.input_file_id}`)
  const report = await examined(service)
  assert.deepEqual([report.code, report.findings], [0, []])
  const found = await books(service)
  assert.deepEqual([found.code, found.mismatches, found.lines], [0, [], 2])
})

test('a blob that rotted is named, with what is lost and what to do', async () => {
  await using upstream = await partlyFailing()
  const { service, batch } = await filled(upstream.base_url)
  await using _ = service
  const key = await outputBlob(service, batch.id)
  const file = await open(pathOf(service, key), 'r+')
  const { size } = await file.stat()
  const byte = Buffer.alloc(1)
  await file.read(byte, 0, 1, size - 40)
  await file.write(Buffer.of((byte[0] ?? 0) ^ 1), 0, 1, size - 40)
  await file.close()
  const report = await examined(service)
  assert.equal(report.code, 1)
  assert.equal(report.findings.length, 1)
  const [finding] = report.findings
  assert.deepEqual(
    [finding?.level, finding?.about, finding?.blob, finding?.affects],
    ['damage', 'blob', key, [`${batch.id} (output)`]],
  )
  const { code, out } = await offpeak(service, 'doctor')
  assert.equal(code, 1)
  assert.match(
    out,
    /^damage {2,}blob .*\n +lost with it: batch_\w+ \(output\)\n +Restore this blob from a backup/,
  )
  assert.match(out, /1 finding of damage/)
  const found = await books(service)
  assert.equal(found.code, 1)
  assert.match(found.mismatches[0]?.problem ?? '', /^chunk 0: its results cannot be read \(.*damaged/)
})

test('a blob that is missing is named, also by a quick examination', async () => {
  await using upstream = await partlyFailing()
  const { service, batch } = await filled(upstream.base_url)
  await using _ = service
  const key = await outputBlob(service, batch.id)
  await rm(pathOf(service, key))
  for (const args of [[], ['--quick']]) {
    const report = await examined(service, ...args)
    assert.equal(report.code, 1)
    assert.deepEqual(
      report.findings.map(({ blob, problem, affects }) => [blob, problem, affects]),
      [[key, 'it is missing', [`${batch.id} (output)`]]],
    )
  }
})

test('a row that is missing is named by what refers to it', async () => {
  await using upstream = await partlyFailing()
  const { service, batch } = await filled(upstream.base_url)
  await using _ = service
  const key = await outputBlob(service, batch.id)
  await service.stores.store.write((tx) => tx.deleteFrom('blobs').where('key', '=', key).execute())
  const report = await examined(service)
  assert.equal(report.code, 1)
  assert.deepEqual(
    report.findings.map(({ blob, affects }) => [blob, affects]),
    [[key, [`${batch.id} (output)`]]],
  )
})

test('a lost master key is told once, and neither the doctor nor a start makes another', async () => {
  await using upstream = await partlyFailing()
  const { service } = await filled(upstream.base_url)
  await using _ = service
  const path = join(service.folder, 'data', 'master-key')
  await rename(path, `${path}.lost`)
  const report = await examined(service)
  assert.equal(report.code, 1)
  assert.ok(report.findings.every(({ about }) => about === 'master_key'))
  assert.match(report.findings[0]?.problem ?? '', /there is no master key at/)
  assert.match(
    report.findings[1]?.problem ?? '',
    /^\d+ blobs open under master key [0-9a-f]{16} alone, and there is none$/,
  )
  assert.equal(report.opened, 0)
  await assert.rejects(openStores(service.config), { name: 'MasterKeyError' })

  await writeFile(path, `${Buffer.from('0123456789abcdef0123456789abcdef').toString('base64')}\n`, {
    mode: 0o600,
  })
  const other = await examined(service)
  assert.deepEqual(
    other.findings.map(({ about }) => about),
    ['master_key'],
  )
  assert.match(other.findings[0]?.problem ?? '', /alone, and the one at hand is [0-9a-f]{16}$/)
  await assert.rejects(openStores(service.config), {
    name: 'AdminCommandError',
    message:
      /^the master key of this database is [0-9a-f]{16}, and this process was given [0-9a-f]{16}: put /,
  })
  await rename(`${path}.lost`, path)
  assert.equal((await examined(service)).code, 0)
})

test('what a crash left is a note and no damage', async () => {
  await using upstream = await partlyFailing()
  const { service } = await filled(upstream.base_url)
  await using _ = service
  await service.worker.stop()
  await service.stores.blobs.put('stray/one', [Buffer.from('orphan')])
  assert.equal((await examined(service)).findings.length, 0, 'a young one may be in the making')
  const long_ago = new Date(systemClock.now() - 7_200_000)
  await utimes(pathOf(service, 'stray/one'), long_ago, long_ago)
  const report = await examined(service)
  assert.deepEqual([report.code, report.findings.length, report.findings[0]?.level], [0, 1, 'note'])
})

test('a database that is broken, or not there, is said to be', async () => {
  await using upstream = await partlyFailing()
  const { service } = await filled(upstream.base_url)
  await using _ = service
  await service.worker.stop()
  assert(service.config.database.kind === 'sqlite')
  const { path } = service.config.database
  const copy = join(service.folder, 'broken.db')
  const broken = { ...service.config, database: { kind: 'sqlite', path: copy } } as const
  const stranger = Object.assign(Object.create(service), { config: broken })
  const missing = await offpeak(stranger, 'doctor')
  assert.deepEqual(
    [missing.code, missing.err],
    [
      1,
      `offpeak: there is no service here, whose database would be ${copy}; choose one with --data or --config\n`,
    ],
  )
  const bytes = await readFile(path)
  bytes.write('no database at all', 0)
  await writeFile(copy, bytes)
  const report = await examined(stranger)
  assert.deepEqual([report.code, report.findings[0]?.about], [1, 'database'])
})

test('every way in which the books can differ is told, on the side where it differs', async () => {
  await using upstream = await partlyFailing()
  const { service, batch } = await filled(upstream.base_url)
  await using _ = service
  const { store } = service.stores
  const told = async (): Promise<string> => {
    const found = await books(service)
    assert.equal(found.code, 1)
    assert.ok(found.mismatches.every(({ batch_id }) => batch_id === null || batch_id === batch.id))
    return found.mismatches.map(({ problem }) => problem).join('\n')
  }

  await store.write((tx) => tx.updateTable('batches').set({ cost_nanos: 6001 }).execute())
  assert.equal(
    await told(),
    'cost: the batch says 0.000006001 USD, its chunks 0.000006 USD\ncost: the batch says 0.000006001 USD, the ledger 0.000006 USD',
  )
  await store.write((tx) => tx.updateTable('batches').set({ cost_nanos: 6000, failed: 3 }).execute())
  assert.match(await told(), /lines failed: the batch says 3, its chunks 2/)
  await store.write((tx) => tx.updateTable('batches').set({ failed: 2 }).execute())

  await store.write((tx) => tx.updateTable('chunks').set({ cost_nanos: 5999 }).execute())
  assert.match(
    await told(),
    /chunk 0: cost: the lines of the output file says 0.000006 USD, the chunk 0.000005999 USD/,
  )
  await store.write((tx) => tx.updateTable('chunks').set({ cost_nanos: 6000 }).execute())

  await store.write((tx) =>
    tx
      .updateTable('usage_days')
      .set((eb) => ({ failed: eb('failed', '+', 1) }))
      .execute(),
  )
  assert.match(await told(), /^\d{4}-\d\d-\d\d, user:1: lines: the ledger says 4, usage \d$/m)
  await store.write((tx) =>
    tx
      .updateTable('usage_days')
      .set((eb) => ({ failed: eb('failed', '-', 1) }))
      .execute(),
  )

  await store.write((tx) =>
    tx
      .updateTable('project_days')
      .set((eb) => ({ tokens: eb('tokens', '+', 7) }))
      .execute(),
  )
  assert.match(await told(), /^\d{4}-\d\d-\d\d: tokens: the ledger says \d+, the project \d+$/m)
  await store.write((tx) =>
    tx
      .updateTable('project_days')
      .set((eb) => ({ tokens: eb('tokens', '-', 7) }))
      .execute(),
  )

  await store.write((tx) => tx.deleteFrom('ledger_entries').execute())
  assert.match(await told(), /cost: the batch says 0.000006 USD, the ledger 0 USD/)
  const spoken = await offpeak(service, 'doctor', 'books')
  assert.match(spoken.out, /The books do not balance: \d+ differences/)
  const none = await offpeak(service, 'doctor', 'books', '--project', 'nobody')
  assert.deepEqual([none.code, none.err], [1, 'offpeak: there is no project "nobody"\n'])
})
