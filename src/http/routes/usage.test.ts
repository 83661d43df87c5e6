import assert from 'node:assert/strict'
import { test } from 'node:test'
import { object, type TestServer, testServer } from '../../../test/support/test-server.ts'
import { parseDay } from '../../domain/days.ts'
import { entityType } from '../../domain/entity.ts'
import { recordOf } from '../../domain/json-record.ts'
import { DAY_SUMS } from '../../domain/line-sums.ts'
import { TOKEN_PARTS, usd } from '../../domain/money.ts'
import type { UsageDayRow } from '../../store/schema.ts'
import { addUsage } from '../../store/usage.ts'
import { openTable } from '../../tables/open-table.ts'
import { cellText } from '../../tables/table.ts'

function row(project_id: string, entity: string, day: string, more: Partial<UsageDayRow> = {}): UsageDayRow {
  return {
    project_id,
    entity,
    day: parseDay(day) ?? 0,
    model: 'm',
    key_id: 'key_1',
    entity_type: entityType(entity) ?? '',
    ...recordOf(DAY_SUMS, () => 0),
    succeeded: 2,
    failed: 1,
    prompt_tokens: 20,
    completion_tokens: 10,
    total_tokens: 30,
    cost_nanos: 7,
    ...more,
  }
}

async function settled(server: TestServer, rows: readonly UsageDayRow[]): Promise<void> {
  await server.deps.store.write((tx) => addUsage(tx, rows))
}

async function someUsage(server: TestServer): Promise<void> {
  const { project_id } = server.key
  const { project_id: other } = await server.issue({ project: 'other' })
  await settled(server, [
    row(project_id, 'user:1', '2026-10-31'),
    row(project_id, 'user:1', '2026-11-01'),
    row(project_id, 'user:1', '2026-11-01', { model: 'n', cost_nanos: 1_000_000_001 }),
    row(project_id, 'team/1', '2026-11-02'),
    row(project_id, '', '2026-11-02', { model: '' }),
    row(other, 'user:1', '2026-11-01'),
  ])
}

test('without groups, usage is one object with the totals of the project', async () => {
  await using server = await testServer()
  await someUsage(server)
  const { json } = await server.call('GET', '/v1/usage/entities')
  assert.deepEqual(json, {
    object: 'usage',
    start: null,
    end: null,
    entity: null,
    entity_type: null,
    lines: 15,
    succeeded: 10,
    failed: 5,
    not_run: 0,
    requests: 0,
    prompt_tokens: 100,
    completion_tokens: 50,
    total_tokens: 150,
    ...recordOf(TOKEN_PARTS, () => 0),
    cost_usd: 1.000000029,
  })
})

test('usage is filtered by entity, type and days', async () => {
  await using server = await testServer()
  await someUsage(server)
  const lines = async (query: string) => (await server.call('GET', `/v1/usage/entities?${query}`)).json.lines
  assert.equal(await lines('entity=user:1'), 9)
  assert.equal(await lines('entity_type=team'), 3)
  assert.equal(await lines('entity=nobody'), 0)
  assert.equal(await lines('start=2026-11-01'), 12)
  assert.equal(await lines('end=2026-11-01'), 3)
  assert.equal(await lines('start=2026-11-01&end=2026-11-02'), 6)
  const noon = Date.UTC(2026, 10, 1, 12) / 1000
  // A moment within a day counts the whole of it.
  assert.equal(await lines(`start=${noon}&end=${noon}`), 6)
  const { json } = await server.call('GET', '/v1/usage/entities?start=2026-11-01&end=2026-12-01')
  assert.deepEqual([json.start, json.end], [Date.UTC(2026, 10) / 1000, Date.UTC(2026, 11) / 1000])
})

test('usage can be grouped by entity, type, model and day', async () => {
  await using server = await testServer()
  await someUsage(server)
  const groups = async (by: string) => {
    const { json } = await server.call('GET', `/v1/usage/entities?group_by=${by}`)
    assert.ok(Array.isArray(json.groups))
    return json.groups.map(object)
  }
  assert.deepEqual(
    (await groups('entity')).map(({ entity, lines }) => [entity, lines]),
    [
      [null, 3],
      ['team/1', 3],
      ['user:1', 9],
    ],
  )
  assert.deepEqual(
    (await groups('day,model')).map(({ day, model, cost_usd }) => [day, model, cost_usd]),
    [
      ['2026-10-31', 'm', 0.000000007],
      ['2026-11-01', 'm', 0.000000007],
      ['2026-11-01', 'n', 1.000000001],
      ['2026-11-02', null, 0.000000007],
      ['2026-11-02', 'm', 0.000000007],
    ],
  )
  assert.deepEqual(
    (await groups('entity_type')).map(({ entity_type, total_tokens }) => [entity_type, total_tokens]),
    [
      [null, 30],
      ['team', 30],
      ['user', 90],
    ],
  )
})

test('an invalid query is a 400 that names the parameter', async () => {
  await using server = await testServer()
  for (const [query = '', param] of [
    ['start=yesterday', 'start'],
    ['start=2026-02-30', 'start'],
    ['end=99999999999999', 'end'],
    ['start=2026-11-02&end=2026-11-01', 'end'],
    ['group_by=colour', 'group_by'],
    ['group_by=entity,', 'group_by'],
    ['format=xml', 'format'],
  ]) {
    const answer = await server.call('GET', `/v1/usage/entities?${query}`)
    assert.deepEqual([answer.outcome, answer.error.param], ['400 invalid_request', param], query)
  }
})

test('CSV contains every group, and no cell that a spreadsheet would run as a formula', async () => {
  await using server = await testServer()
  const { project_id } = server.key
  const bad = ['=1+1', '+1', '-1', '@x', '\tx', '"q",r', 'a\nb']
  await settled(
    server,
    bad.map((entity) => row(project_id, entity, '2026-11-01')),
  )
  const many = Array.from({ length: 12_345 }, (_, i) =>
    row(project_id, `user:${String(i).padStart(5, '0')}`, `2026-11-${String((i % 20) + 1).padStart(2, '0')}`),
  )
  await settled(server, many)
  const json = await server.call('GET', '/v1/usage/entities?group_by=entity')
  assert.deepEqual([json.outcome, json.error.param], ['400 invalid_request', 'group_by'])
  const csv = await server.call('GET', '/v1/usage/entities?group_by=entity,day&format=csv')
  assert.equal(csv.headers.get('content-type'), 'text/csv; charset=utf-8')
  const rows = csv.text.split('\r\n')
  assert.equal(
    rows[0],
    'entity,day,lines,succeeded,failed,not_run,requests,prompt_tokens,completion_tokens,total_tokens,cached_tokens,cache_write_tokens,cache_write_1h_tokens,reasoning_tokens,cost_usd',
  )
  assert.equal(rows.filter((one) => one.startsWith('user:')).length, many.length)
  const sums = '2026-11-01,3,2,1,0,0,20,10,30,0,0,0,0,0.000000007'
  for (const cell of [`'=1+1`, `'+1`, `-1`, `'@x`, '"\'\tx"', '"""q"",r"', '"a\nb"'])
    assert.ok(csv.text.includes(`\r\n${cell},${sums}\r\n`), cell)
  const total = await server.call('GET', '/v1/usage/entities?format=csv')
  assert.equal(total.text.split('\r\n')[1]?.split(',')[0], String(3 * (bad.length + many.length)))
})

test('FOCUS has a row for each day, entity, key, model and meter, and adds up to the report to the nano-dollar', async () => {
  await using server = await testServer()
  await someUsage(server)
  const { project_id } = server.key
  const many = Array.from({ length: 5_200 }, (_, i) =>
    row(project_id, `team:${i % 1000}`, '2026-11-03', {
      model: 'sim-1',
      key_id: `key_${i}`,
      cost_nanos: 1_234_567 + i,
    }),
  )
  await settled(server, many)
  const read = async (accept: string, key = server.key.key, query = '') => {
    const answer = await fetch(`${server.url}/v1/usage/entities?format=focus${query}`, {
      headers: { authorization: `Bearer ${key}`, accept },
    })
    assert.equal(answer.status, 200)
    const name = accept === 'text/csv' ? 'focus.csv' : 'focus.parquet'
    assert.ok(answer.headers.get('content-disposition')?.includes(`filename="${name}"`))
    const blob = await answer.blob()
    const slice = (start: number, end?: number) => blob.slice(start, end).arrayBuffer()
    const table = await openTable({ name, byteLength: blob.size, slice })
    const rows = await Array.fromAsync(table.rows())
    const names = table.columns.map((column) => column.name)
    return rows.map(({ cells }) => Object.fromEntries(names.map((column, i) => [column, cellText(cells[i])])))
  }
  const csv = await read('text/csv')
  const parquet = await read('application/vnd.apache.parquet')
  assert.deepEqual(parquet, csv)
  assert.equal(
    new Set(csv.map((one) => JSON.stringify([one.Tags, one.ChargePeriodStart, one.SkuMeter]))).size,
    csv.length,
  )
  const nanos = (rows: typeof csv): number =>
    rows.reduce((sum, { BilledCost }) => sum + Number(BilledCost?.replace('.', '')), 0)
  const { json } = await server.call('GET', '/v1/usage/entities')
  assert.equal(usd(nanos(csv)), json.cost_usd)
  const tokens = csv.reduce((sum, one) => sum + Number(one.ConsumedQuantity), 0)
  assert.equal(tokens, json.total_tokens)
  const groups = await server.call('GET', '/v1/usage/entities?group_by=day&entity=team:7')
  const ofTeam = csv.filter(({ x_Entity }) => x_Entity === 'team:7')
  assert.deepEqual(
    Object(groups.json.groups).map(({ cost_usd }: { cost_usd: number }) => cost_usd),
    [usd(nanos(ofTeam))],
  )
  assert.deepEqual(ofTeam[0]?.SubAccountName, 'default')
  const { key } = await server.issue({ project: 'operators', scopes: ['operator', 'usage:read'] })
  const all = await read('text/csv', key, '&project_id=all')
  assert.equal(all.length, csv.length + 2, 'and those of the project "other"')
  const one = await server.call('GET', `/v1/usage/entities?project_id=${project_id}`, { key })
  assert.equal(one.json.cost_usd, json.cost_usd)
  for (const [query = '', outcome] of [
    ['format=focus&project_id=all', '403 missing_scope'],
    ['project_id=proj_x', '403 missing_scope'],
    ['format=focus&group_by=day', '400 invalid_request'],
  ])
    assert.equal((await server.call('GET', `/v1/usage/entities?${query}`)).outcome, outcome, query)
  assert.equal(
    (await server.call('GET', '/v1/usage/entities?project_id=all', { key })).outcome,
    '400 invalid_request',
  )
})

test('a report over many rows is whole, and other calls are answered while it is summed up', async () => {
  await using server = await testServer()
  const { project_id } = server.key
  const days = 100
  const rows = Array.from({ length: 30_000 }, (_, i) =>
    row(project_id, `user:${Math.floor(i / days)}`, '2026-11-01', {
      day: (parseDay('2026-01-01') ?? 0) + (i % days),
      model: i % 2 === 0 ? 'm' : 'n',
    }),
  )
  await settled(server, rows)
  const { key } = await server.issue({ project: 'other', scopes: ['files:read'] })
  const answered: string[] = []
  const call = async (name: string, path: string, as?: string) => {
    const { json } = await server.call('GET', path, as === undefined ? {} : { key: as })
    answered.push(name)
    return json
  }
  const [byDay, byEntity, byType] = await Promise.all([
    call('report', '/v1/usage/entities?group_by=day,model'),
    call('report', '/v1/usage/entities?group_by=entity'),
    call('report', '/v1/usage/entities?group_by=entity_type'),
    call('other', '/v1/files', key),
  ])
  assert.equal(answered[0], 'other')
  for (const [{ groups, lines }, count, each] of [
    [byDay ?? {}, days, 900],
    [byEntity ?? {}, 300, 300],
    [byType ?? {}, 1, 90_000],
  ] as const) {
    assert.equal(lines, 90_000)
    assert.ok(Array.isArray(groups))
    assert.deepEqual(new Set(groups.map((group) => object(group).lines)), new Set([each]))
    assert.equal(groups.length, count)
  }
})

test('either scope gives access', async () => {
  await using server = await testServer()
  for (const scope of ['limits:read', 'usage:read'] as const) {
    const { key } = await server.issue({ scopes: [scope] })
    assert.equal((await server.call('GET', '/v1/usage/entities', { key })).status, 200)
  }
})
