import assert from 'node:assert/strict'
import { test } from 'node:test'
import { type CallOptions, object, type TestServer, testServer } from '../../../test/support/test-server.ts'
import { BATCH_STATUSES, type BatchStatus } from '../../domain/batch.ts'
import { ENDPOINT_PATHS } from '../../domain/endpoint.ts'
import { newId } from '../../domain/ids.ts'
import { addToBatch } from '../../store/batches.ts'
import { insertChunks } from '../../store/chunks.ts'
import { ROWS_LOOKED_AT_MAX } from '../../store/page.ts'
import { insertTask } from '../../store/tasks.ts'
import { type LaneReport, openSession, setLaneReports } from '../../store/workers.ts'

const DAY_S = 86_400

function order(input_file_id: string, more: object = {}): CallOptions {
  return { body: { input_file_id, endpoint: '/v1/chat/completions', completion_window: '24h', ...more } }
}

async function setStatus(server: TestServer, id: string, status: BatchStatus): Promise<void> {
  await server.deps.store.write((tx) =>
    tx.updateTable('batches').set({ status }).where('id', '=', id).execute(),
  )
}

test('a new batch is validating, with zero counts and costs', async () => {
  await using server = await testServer()
  const file = await server.processedFile({ line_count: 12 })
  const { status, json, id } = await server.call(
    'POST',
    '/v1/batches',
    order(file, { metadata: { entity: 'user:1' } }),
  )
  assert.equal(status, 200)
  const now = Math.floor(server.clock.now() / 1000)
  assert.deepEqual(json, {
    id,
    object: 'batch',
    name: 'in.jsonl',
    endpoint: '/v1/chat/completions',
    status: 'validating',
    input_file_id: file,
    output_file_id: null,
    error_file_id: null,
    completion_window: '24h',
    request_counts: { total: 12, completed: 0, failed: 0 },
    not_run: 0,
    usage: {
      input_tokens: 0,
      input_tokens_details: { cached_tokens: 0, cache_write_tokens: 0, cache_write_1h_tokens: 0 },
      output_tokens: 0,
      output_tokens_details: { reasoning_tokens: 0 },
      total_tokens: 0,
    },
    cost_usd: 0,
    region: 'local',
    created: now,
    created_at: now,
    expires_at: now + DAY_S,
    metadata: { entity: 'user:1' },
  })
  const { progress, waiting_reason, ...same } = (await server.call('GET', `/v1/batches/${id}`)).json
  assert.deepEqual(same, json)
  assert.deepEqual([object(progress).at_risk, object(waiting_reason).code], [true, 'no_worker'])
  const task = await server.deps.store.read
    .selectFrom('tasks')
    .selectAll()
    .where('kind', '=', 'plan')
    .executeTakeFirstOrThrow()
  assert.equal(task.subject, id)
  assert.equal(server.woken(), 2)
})

test('the batch expires at exactly the second that the answer names', async () => {
  await using server = await testServer()
  const file = await server.processedFile()
  for (const late_ms of [1, 998]) {
    await server.clock.advance(late_ms)
    const { id, json } = await server.call('POST', '/v1/batches', order(file))
    const { expires_at } = await server.deps.store.read
      .selectFrom('batches')
      .select('expires_at')
      .where('id', '=', id)
      .executeTakeFirstOrThrow()
    assert.equal(expires_at, Number(json.expires_at) * 1000)
    assert.equal(expires_at, 1_700_000_000_000 + DAY_S * 1000)
  }
})

test('the entity header and the language are stored with the batch, and the entity with the audit record', async () => {
  await using server = await testServer()
  const file = await server.processedFile()
  const headers = { 'x-service-entity': 'team/7', 'accept-language': 'fr;q=0.5, de' }
  const answer = await server.call('POST', '/v1/batches', { ...order(file), headers })
  const row = await server.deps.store.read.selectFrom('batches').selectAll().executeTakeFirstOrThrow()
  assert.deepEqual([row.header_entity, row.language], ['team/7', 'de'])
  const record = await server.call('GET', `/v1/requests/${answer.request_id}`)
  assert.equal(record.json.entity, 'team/7')
})

test('an invalid request gets an error with the expected and the actual value', async () => {
  await using server = await testServer()
  const file = await server.processedFile()
  const many = Object.fromEntries(Array.from({ length: 17 }, (_, i) => [`k${i}`, 'v']))
  const cases: [object, string, string][] = [
    [
      { input_file_id: undefined },
      'input_file_id',
      '`input_file_id`, `requests` or `input_url` is required.',
    ],
    [{ input_file_id: 7 }, 'input_file_id', '`input_file_id` must be a string, not the number 7.'],
    [
      { endpoint: '/v1/moderations' },
      'endpoint',
      `\`endpoint\` must be one of ${[...ENDPOINT_PATHS, 'mixed'].map((path) => JSON.stringify(path)).join(', ')}, not "/v1/moderations".`,
    ],
    [{ completion_window: 'soon' }, 'completion_window', '`completion_window` must be "24h".'],
    [
      { completion_window: 24 },
      'completion_window',
      '`completion_window` must be a string, not the number 24.',
    ],
    [{ metadata: 'x' }, 'metadata', '`metadata` must be an object or null, not "x".'],
    [{ metadata: { entity: 5 } }, 'metadata.entity', '`metadata.entity` must be a string, not the number 5.'],
    [{ metadata: many }, 'metadata', '`metadata` must not have more than 16 properties.'],
  ]
  for (const [more, param, message] of cases) {
    const answer = await server.call('POST', '/v1/batches', order(file, more))
    assert.equal(answer.outcome, '400 invalid_request', answer.text)
    assert.equal(answer.error.param, param)
    assert.equal(answer.error.message, message)
  }
  const long = await server.call('POST', '/v1/batches', order(file, { metadata: { a: 'x'.repeat(513) } }))
  assert.equal(long.error.param, 'metadata.a')
  const longKey = await server.call(
    'POST',
    '/v1/batches',
    order(file, { metadata: { ['k'.repeat(65)]: 'x' } }),
  )
  assert.equal(longKey.outcome, '400 invalid_request')
  const header = { headers: { 'x-service-entity': 'x'.repeat(513) } }
  const entity = await server.call('POST', '/v1/batches', { ...order(file), ...header })
  assert.equal(entity.error.param, 'X-Service-Entity')
  assert.deepEqual((await server.call('GET', '/v1/batches')).data, [])
})

test('extra fields of OpenAI clients are accepted, and metadata may be null', async () => {
  await using server = await testServer()
  const file = await server.processedFile()
  const extra = { metadata: null, output_expires_after: { anchor: 'created_at', seconds: 9 } }
  const answer = await server.call('POST', '/v1/batches', order(file, extra))
  assert.equal(answer.status, 200)
  assert.deepEqual(answer.json.metadata, {})
  const { output_expires_after_ms } = await server.deps.store.read
    .selectFrom('batches')
    .select('output_expires_after_ms')
    .executeTakeFirstOrThrow()
  assert.equal(output_expires_after_ms, 9000)
  const wrong = order(file, { output_expires_after: { anchor: 'now', seconds: 9 } })
  assert.equal((await server.call('POST', '/v1/batches', wrong)).error.param, 'output_expires_after.anchor')
})

test('a completion window that the plan lacks is a 403 that names the plan', async () => {
  await using server = await testServer()
  const file = await server.processedFile()
  const answer = await server.call('POST', '/v1/batches', order(file, { completion_window: '4h' }))
  assert.equal(answer.outcome, '403 plan_lacks_feature')
  assert.match(String(answer.error.message), /"payg".* `plans\.payg\.completion_windows`/)
  const { key } = await server.issue({ project: 'big', plan: 'enterprise' })
  const theirs = await server.processedFile({ key })
  const short = await server.call('POST', '/v1/batches', {
    ...order(theirs, { completion_window: '4h' }),
    key,
  })
  assert.equal(Number(short.json.expires_at) - Number(short.json.created), DAY_S / 6)
  const spelled = await server.call('POST', '/v1/batches', {
    ...order(theirs, { completion_window: '240m' }),
    key,
  })
  assert.equal(spelled.json.completion_window, '4h')
})

test('the input must be a processed upload of this project', async () => {
  await using server = await testServer()
  const unknown = await server.createBatch('file_unknown')
  assert.equal(unknown.outcome, '404 file_not_found')
  assert.equal(unknown.error.param, 'input_file_id')
  const { id: pending } = await server.upload()
  assert.equal((await server.createBatch(pending)).outcome, '422 file_not_processed')
  const { store } = server.deps
  await store.write((tx) =>
    tx.updateTable('files').set({ status: 'error', status_details: 'Line 3' }).execute(),
  )
  assert.match((await server.createBatch(pending)).text, /Line 3/)
  await store.write((tx) =>
    tx.updateTable('files').set({ status: 'processed', purpose: 'batch_output' }).execute(),
  )
  const results = await server.createBatch(pending)
  assert.deepEqual([results.outcome, results.error.param], ['400 invalid_request', 'input_file_id'])
})

test('an unfinished batch can be cancelled, and cancelling it again shows the same batch', async () => {
  await using server = await testServer()
  const file = await server.processedFile()
  for (const status of BATCH_STATUSES) {
    const { id } = await server.createBatch(file)
    await setStatus(server, id, status)
    // An SDK sends a JSON content type and nothing else.
    const headers = { 'content-type': 'application/json' }
    const answer = await server.call('POST', `/v1/batches/${id}/cancel`, { headers })
    if (status === 'completed' || status === 'failed' || status === 'expired') {
      assert.equal(answer.outcome, '422 batch_not_cancellable', status)
      continue
    }
    const expected = status === 'cancelled' ? 'cancelled' : 'cancelling'
    assert.equal(answer.json.status, expected, status)
    if (status === 'queued') assert.equal(answer.json.cancelling_at, Math.floor(server.clock.now() / 1000))
    const again = await server.call('POST', `/v1/batches/${id}/cancel`, { body: {} })
    assert.deepEqual(again.json, answer.json)
  }
  assert.equal((await server.call('POST', '/v1/batches/batch_x/cancel')).outcome, '404 batch_not_found')
})

test('a cancel wakes the worker', async () => {
  await using server = await testServer()
  const { id } = await server.createBatch(await server.processedFile())
  const { store, clock } = server.deps
  await store.write(async (tx) => {
    await insertTask(tx, { kind: 'purge', subject: id, project_id: server.key.project_id }, clock.now())
  })
  const before = server.woken()
  await server.call('POST', `/v1/batches/${id}/cancel`)
  assert.equal(server.woken(), before + 1)
})

test('batches are listed by status', async () => {
  await using server = await testServer()
  const file = await server.processedFile()
  const [first, second] = [(await server.createBatch(file)).id, (await server.createBatch(file)).id]
  await setStatus(server, first, 'completed')
  assert.deepEqual((await server.call('GET', '/v1/batches')).ids, [second, first])
  assert.deepEqual((await server.call('GET', '/v1/batches?status=completed')).ids, [first])
  assert.equal((await server.call('GET', '/v1/batches?status=done')).outcome, '400 invalid_request')
  const { store } = server.deps
  await store.write((tx) =>
    tx.updateTable('batches').set({ models: '["sim-1","a\\"b"]' }).where('id', '=', first).execute(),
  )
  for (const [model, ids] of [
    ['sim-1', [first]],
    ['a"b', [first]],
    ['sim', []],
  ] as const)
    assert.deepEqual(
      (await server.call('GET', `/v1/batches?model=${encodeURIComponent(model)}`)).ids,
      ids,
      model,
    )
})

test('a batch is found by the words of its name, its IDs, its metadata and its models', async () => {
  await using server = await testServer()
  const create = async (metadata: object): Promise<string> => {
    await server.clock.advance(1000)
    const file = await server.processedFile()
    return (await server.call('POST', '/v1/batches', order(file, { metadata }))).id
  }
  const [first, second, third = ''] = [
    await create({ name: 'Übersetzung März', entity: 'user:1' }),
    await create({ note: 'a "quoted" \\ 100%', entity: 'user:12' }),
    await create({ name: '' }),
  ]
  const found = async (search = ''): Promise<string[]> =>
    (await server.call('GET', `/v1/batches?search=${encodeURIComponent(search)}`)).ids
  assert.deepEqual(await found('übersetzung'), [first])
  assert.deepEqual(await found('ÜBER  März user:1'), [first])
  assert.deepEqual(await found('user:1'), [second, first])
  for (const word of ['"quoted"', '\\', '100%']) assert.deepEqual(await found(word), [second], word)
  assert.deepEqual(await found('%'), [second])
  assert.deepEqual(await found('IN.JSONL'), [third, second, first])
  assert.deepEqual(await found(third.slice(-8).toUpperCase()), [third])
  assert.deepEqual(await found('user:1 nowhere'), [])
  assert.deepEqual(await found(' '), [third, second, first])
  const names = (await server.call('GET', '/v1/batches')).data.map(({ name }) => name)
  assert.deepEqual(names, ['in.jsonl', 'in.jsonl', 'Übersetzung März'])
  const long = await server.call('GET', `/v1/batches?search=${'x'.repeat(201)}`)
  assert.equal(long.outcome, '400 invalid_request')
})

test('a search that one call cannot end goes on behind the cursor', async () => {
  await using server = await testServer()
  const { id } = await server.createBatch(await server.processedFile())
  await server.deps.store.write(async (tx) => {
    const [row] = await tx.selectFrom('batches').selectAll().execute()
    assert(row)
    const rows = Array.from({ length: ROWS_LOOKED_AT_MAX }, () => ({
      ...row,
      id: newId('batch', row.created + 1),
      input_filename: 'other.jsonl',
    }))
    for (const one of rows) await tx.insertInto('batches').values(one).execute()
  })
  const first = await server.call('GET', '/v1/batches?search=in.jsonl')
  assert.deepEqual([first.ids, first.json.has_more], [[], true])
  const next = await server.call('GET', `/v1/batches?search=in.jsonl&after=${first.json.next_cursor}`)
  assert.deepEqual([next.ids, next.json.has_more], [[id], false])
  const csv = await server.call('GET', '/v1/batches?search=in.jsonl&format=csv')
  assert.deepEqual(
    csv.text
      .trim()
      .split('\r\n')
      .slice(1)
      .map((line) => line.split(',')[0]),
    [id],
  )
})

test('the list as CSV has every batch, and cells that no spreadsheet takes for formulas', async () => {
  await using server = await testServer()
  const metadata = { name: '=1+1, "two"', entity: 'user:1' }
  const { id } = await server.call('POST', '/v1/batches', order(await server.processedFile(), { metadata }))
  const { text, headers } = await server.call('GET', '/v1/batches?format=csv&status=validating')
  assert.match(headers.get('content-type') ?? '', /^text\/csv/)
  assert.match(headers.get('content-disposition') ?? '', /batches\.csv/)
  const [header, row] = text.split('\r\n')
  assert.equal(
    header,
    'id,name,status,endpoint,model,entity,created,expires_at,ended_at,lines,completed,failed,not_run,prompt_tokens,completion_tokens,cost_usd',
  )
  assert.ok(row?.startsWith(`${id},"'=1+1, ""two""",validating,/v1/chat/completions,,user:1,`), String(row))
  assert.ok(row?.endsWith(',,1,0,0,0,0,0,0'), String(row))
  const none = await server.call('GET', '/v1/batches?format=csv&status=failed')
  assert.equal(none.text.trim(), header)
})

test('batches are listed in any order, page by page, also where values change between pages', async () => {
  await using server = await testServer()
  const { store } = server.deps
  // IDs of earlier tests, some of which wait for the end of a retention, lie before.
  await server.clock.advance(10_000 * 86_400_000)
  const file = await server.processedFile()
  const ids: string[] = []
  for (const name of ['b', 'a', 'c', 'd', 'e']) {
    await server.clock.advance(1000)
    ids.push((await server.call('POST', '/v1/batches', order(file, { metadata: { name } }))).id)
  }
  const [one = '', two = '', three = '', four = '', five = ''] = ids
  const set = (id: string, values: object): Promise<unknown> =>
    store.write((tx) => tx.updateTable('batches').set(values).where('id', '=', id).execute())
  await set(one, { cost_nanos: 5, total: 9, status: 'queued', speed: 1 / 3 })
  await set(two, { cost_nanos: 7, run_failed: 2, failed: 2, speed: 2e-7 })
  await set(three, { cost_nanos: 5, failed: 8, not_run: 8, expires_at: server.clock.now() + 1 })
  const listed = async (query: string): Promise<string[]> => {
    const paged: string[] = []
    for (let next = ''; ; ) {
      const page = await server.call('GET', `/v1/batches?${query}&limit=2${next}`)
      assert.equal(page.status, 200, page.text)
      paged.push(...page.ids)
      if (page.json.next_cursor === null) break
      next = `&starting_after=${encodeURIComponent(String(page.json.next_cursor))}`
    }
    const whole = await server.call('GET', `/v1/batches?${query}`)
    assert.deepEqual(paged, whole.ids, query)
    const csv = await server.call('GET', `/v1/batches?${query}&format=csv`)
    const rows = csv.text.trim().split('\r\n').slice(1)
    assert.deepEqual(
      rows.map((row) => row.split(',')[0]),
      paged,
      query,
    )
    return paged
  }
  assert.deepEqual(await listed('sort=created'), [five, four, three, two, one])
  assert.deepEqual(await listed('sort=cost'), [two, three, one, five, four])
  assert.deepEqual(await listed('sort=cost&order=asc'), [four, five, one, three, two])
  assert.deepEqual(await listed('sort=name&order=asc'), [two, one, three, four, five])
  assert.deepEqual(await listed('sort=lines'), [one, five, four, three, two])
  assert.deepEqual(await listed('sort=failed'), [two, five, four, three, one], 'not run is not failed')
  assert.deepEqual(await listed('sort=speed'), [one, two, five, four, three])
  assert.deepEqual(await listed('sort=speed&order=asc'), [three, four, five, two, one])
  assert.deepEqual(await listed('sort=deadline&order=asc'), [three, one, two, four, five])
  assert.deepEqual(await listed('sort=status'), [five, four, three, two, one])
  assert.deepEqual(await listed('sort=status&order=asc'), [one, two, three, four, five])
  assert.deepEqual(await listed('sort=cost&status=validating'), [two, three, five, four])
  assert.deepEqual(await listed('sort=status&status=validating'), [five, four, three, two])
  const since = Math.floor(server.clock.now() / 1000) - 2
  assert.deepEqual(await listed(`sort=cost&since=${since}`), [three, five, four])
  assert.deepEqual(await listed('sort=cost&search=in.jsonl'), [two, three, one, five, four])

  const first = await server.call('GET', '/v1/batches?sort=cost&limit=2')
  assert.deepEqual(first.ids, [two, three])
  await set(three, { cost_nanos: 900 })
  const goOn = (cursor: unknown): Promise<string[]> =>
    server.call('GET', `/v1/batches?sort=cost&starting_after=${cursor}`).then((page) => page.ids)
  assert.deepEqual(await goOn(first.json.next_cursor), [one, five, four], 'where the page ended')
  assert.deepEqual(await goOn(first.json.last_id), [two, one, five, four], 'behind where the batch is now')
  assert.deepEqual(await goOn(`${two}:x`), [one, five, four])
  const other = await server.call('GET', '/v1/batches?sort=cost&starting_after=batch_0:7')
  assert.equal(other.outcome, '404 cursor_not_found')
  assert.equal((await server.call('GET', '/v1/batches?sort=colour')).outcome, '400 invalid_request')
})

test('a finished batch shows its times, its cost and its result files', async () => {
  await using server = await testServer()
  const { id } = await server.createBatch(await server.processedFile())
  await server.deps.store.write((tx) =>
    tx
      .updateTable('batches')
      .set({
        status: 'completed',
        cost_nanos: 12_340,
        completed: 1,
        in_progress_at: 1_700_000_001_999,
        completed_at: 1_700_000_002_000,
        output_file_id: 'file_o',
      })
      .execute(),
  )
  const { json } = await server.call('GET', `/v1/batches/${id}`)
  assert.deepEqual(
    [json.cost_usd, json.in_progress_at, json.completed_at, json.output_file_id],
    [0.00001234, 1_700_000_001, 1_700_000_002, 'file_o'],
  )
  assert.equal('failed_at' in json, false)
})

test('an unfinished batch shows its progress and its waiting reason', async () => {
  await using server = await testServer()
  const { clock } = server
  const { store } = server.deps
  const { id } = await server.createBatch(await server.processedFile())
  const span = { first_line: 1, line_count: 50, byte_start: 0, byte_end: 9, model: 'sim-1' }
  await store.write(async (tx) => {
    const owner = { id, project_id: server.key.project_id, key_id: server.key.id, expires_at: 9e15 }
    await insertChunks(tx, owner, [
      { ...span, index: 0 },
      { ...span, index: 1, first_line: 51 },
    ])
    await tx.updateTable('batches').set({ status: 'queued', total: 100 }).execute()
  })
  const progress = async (): Promise<unknown[]> => {
    const { json } = await server.call('GET', `/v1/batches/${id}`)
    const [listed] = (await server.call('GET', '/v1/batches')).data
    assert.deepEqual(listed, json)
    const reason = json.waiting_reason === null ? null : object(json.waiting_reason)
    return [reason?.code ?? null, object(json.progress)]
  }
  const nothing = { lines_per_s: null, estimated_completion: null, at_risk: false }
  assert.deepEqual(await progress(), ['no_worker', { ...nothing, at_risk: true }])

  const workerId = await store.write((tx) => openSession(tx, 60_000, clock.now()))
  assert.deepEqual(await progress(), ['queued', nothing])
  const unavailable: LaneReport = {
    model: 'sim-1',
    state: 'unavailable',
    since: clock.now() - 5_000,
    reason: 'refused',
    last_error: null,
    batches: {},
    isOpen: true,
  }
  await store.write((tx) => setLaneReports(tx, workerId, [{ ...unavailable, model: 'other' }]))
  assert.deepEqual(await progress(), ['queued', nothing])
  await store.write((tx) => setLaneReports(tx, workerId, [unavailable]))
  assert.deepEqual(await progress(), ['model_unavailable', { ...nothing, at_risk: true }])

  const in_progress_at = clock.now()
  await store.write(async (tx) => {
    await tx.updateTable('batches').set({ status: 'in_progress', in_progress_at }).execute()
    await addToBatch(tx, id, { completed: 10, at: clock.now() })
  })
  await clock.advance(2_000)
  await store.write((tx) => addToBatch(tx, id, { completed: 40, at: clock.now() }))
  const estimated_completion = Math.floor(clock.now() / 1000) + 2
  const moving = { lines_per_s: 20, estimated_completion, at_risk: false }
  // Lines end: whatever a worker reports, the batch waits for nothing.
  assert.deepEqual(await progress(), [null, moving])
  await store.write((tx) =>
    tx
      .updateTable('batches')
      .set({ expires_at: clock.now() + 2_100 })
      .execute(),
  )
  assert.deepEqual(await progress(), [null, { ...moving, at_risk: true }])
  await clock.advance(60_000)
  assert.equal((await progress())[0], 'model_unavailable')

  await setStatus(server, id, 'completed')
  const { json } = await server.call('GET', `/v1/batches/${id}`)
  assert.deepEqual([json.progress, json.waiting_reason], [undefined, undefined])
})
