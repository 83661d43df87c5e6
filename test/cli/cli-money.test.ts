// Limits, usage and estimates from a shell, against the real service.
import assert from 'node:assert/strict'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { bar } from '../../src/cli/commands/usage.ts'
import { openTable } from '../../src/cli/tables/open-table.ts'
import { offpeak, offpeakJson } from '../fakes/offpeak.ts'
import { testUpstream } from '../fakes/upstream.ts'
import { configFor, line, TestService } from '../service.ts'

interface Limit {
  id: string
  amount: number
  metric: string
  notify_at: number[]
  description?: string
}

test('a limit is made, listed, shown, changed and deleted', async () => {
  await using service = await TestService.start(configFor('http://127.0.0.1:1/v1'), { worker: false })
  const made = await offpeak(service, 'limits', 'create', '--entity', 'user:42', '--usd', '25')
  assert.match(made.out, /^lim_\w+\n$/)
  const id = made.out.trim()
  const other = await offpeakJson<Limit>(
    service,
    ...['limits', 'create', '--entity-type', 'user', '--tokens', '1000000', '--window', 'day'],
    ...['--action', 'notify', '--notify-at', '0.5,0.8', '--description', 'ask us'],
  )
  assert.deepEqual(
    [other.metric, other.amount, other.notify_at, other.description],
    ['tokens', 1_000_000, [0.5, 0.8], 'ask us'],
  )
  await offpeakJson(service, 'limits', 'create', '--project', '--usd', '0.5')
  const list = await offpeak(service, 'limits', 'list')
  assert.match(list.out, /^ID +FOR +CAP +WINDOW +ACTION +NOTIFY AT +CREATED +DESCRIPTION\n/)
  assert.match(list.out, new RegExp(`^${id} +user:42 +\\$25\\.00 +month +block +- `, 'm'))
  assert.match(list.out, / each user +1,000,000 tokens +day +notify +50% 80% .* ask us$/m)
  assert.match(list.out, / the project +\$0\.500 +month +block /)
  assert.equal((await offpeakJson<Limit[]>(service, 'limits', 'list', '--scope', 'entity')).length, 1)

  const changed = await offpeakJson<Limit>(
    service,
    'limits',
    'set',
    id,
    '--amount',
    '50',
    '--notify-at',
    '0.9',
  )
  assert.deepEqual([changed.amount, changed.notify_at], [50, [0.9]])
  assert.match((await offpeak(service, 'limits', 'get', id)).out, /^amount +50$/m)
  assert.equal((await offpeak(service, 'limits', 'delete', id)).err, `${id} is deleted.\n`)
  assert.match((await offpeak(service, 'limits', 'get', id)).err, /There is no such limit/)
})

test('usage of an entity shows its limit, however many others were made since', async () => {
  await using service = await TestService.start(configFor('http://127.0.0.1:1/v1'), { worker: false })
  for (let i = 0; i <= 100; i++) {
    const cap = { scope: 'entity', entity: `user:${i}`, metric: 'tokens', window: 'day', amount: 1000 + i }
    await service.json('POST', '/v1/limits', cap)
  }
  assert.match(
    (await offpeak(service, 'usage', '--entity', 'user:0')).out,
    / 1,000 tokens +day +block +user:0$/m,
  )
})

test('a limit that says too little or too much is refused before it is sent', async () => {
  await using service = await TestService.start(configFor('http://127.0.0.1:1/v1'), { worker: false })
  for (const [args, said] of [
    [['--usd', '1'], /needs one of --entity/],
    [
      ['--entity', 'user:1', '--project', '--usd', '1'],
      /one of --entity, --entity-type, --project, --key and --model/,
    ],
    [['--project'], /one of --usd, --tokens and --requests/],
    [['--project', '--usd', '1', '--tokens', '1'], /one of --usd, --tokens and --requests/],
    [['--project', '--usd', '-1'], /Expected an amount/],
    [['--project', '--usd', '1', '--notify-at', '2'], /fraction from 0 to 1/],
  ] as const) {
    const { code, err } = await offpeak(service, 'limits', 'create', ...args)
    assert.equal(code, 1)
    assert.match(err, said)
  }
  assert.match((await offpeak(service, 'limits', 'set', 'lim_x')).err, /there is nothing to change/)
})

test('a cap in dollars says which models it does not hold back', async () => {
  const priced = configFor('http://127.0.0.1:1/v1')
  const config = priced.replace('models:', 'models:\n  - id: free\n    upstreams: [{type: sim}]')
  await using service = await TestService.start(config, { worker: false })
  const dollars = await offpeak(service, 'limits', 'create', '--project', '--usd', '1')
  assert.match(dollars.out, /^lim_\w+\n$/)
  assert.match(dollars.err, /models without a price cost nothing, .*: free\./)
  assert.equal((await offpeak(service, 'limits', 'create', '--project', '--tokens', '1')).err, '')
  await using all = await TestService.start(priced, { worker: false })
  assert.equal((await offpeak(all, 'limits', 'create', '--project', '--usd', '1')).err, '')
})

test('usage is a table, with a bar for each cap', async () => {
  await using upstream = await testUpstream()
  await using service = await TestService.start(configFor(upstream.base_url))
  // Each line costs 0.000003 USD and 15 tokens.
  await offpeakJson(service, 'limits', 'create', '--entity', 'user:1', '--usd', '1', '--action', 'notify')
  await offpeakJson(
    service,
    'limits',
    'create',
    '--entity-type',
    'user',
    '--tokens',
    '100',
    '--action',
    'notify',
  )
  await offpeakJson(service, 'limits', 'create', '--project', '--usd', '0', '--action', 'notify')
  await service.run([line('a'), line('b'), line('c', 'c', { model: 'nope' })], {
    metadata: { entity: 'user:1' },
  })
  await service.run([line('d')], { metadata: { entity: 'user:2' } })
  const { code, out, err } = await offpeak(service, 'usage')
  assert.equal(code, 0, err)
  assert.match(out, /^Since \d{4}-\d\d-01: 4 lines \(3 succeeded, 1 failed\), 45 tokens, \$0\.00000900\n/)
  assert.match(out, /^COST +LINES +FAILED +NOT RUN +TOKENS +ENTITY +MODEL$/m)
  assert.match(out, /^\$0\.00000600 +2 +0 +0 +30 +user:1 +m$/m)
  assert.match(out, /^\$0\.00000300 +1 +0 +0 +15 +user:2 +m$/m)
  assert.match(out, /^█░{19} +0% +\$0\.00000600 +\$1\.00 +month +notify +user:1$/m)
  assert.match(out, /^█{6}░{14} +30% +30 tokens +100 tokens +month +notify +user:1$/m)
  assert.match(out, /^█{3}░{17} +15% +15 tokens +100 tokens +month +notify +user:2$/m)
  assert.match(out, /^█{20} +100% +\$0\.00000900 +\$0\.00 +month +notify +the project$/m)

  const one = await offpeakJson<{ lines: number; groups: object[]; caps: object[] }>(
    service,
    ...['usage', '--entity', 'user:2', '--group-by', 'day'],
  )
  assert.deepEqual([one.lines, one.groups.length, one.caps.length], [1, 1, 0])
  const csv = await offpeak(service, 'usage', '--csv', '--group-by', 'entity')
  assert.equal(csv.out.trim().split(/\r?\n/).length, 3)
  assert.match(csv.out, /^user:2,/m)
  const folder = await mkdtemp(join(tmpdir(), 'offpeak-focus-'))
  const path = join(folder, 'focus.parquet')
  assert.equal((await offpeak(service, 'usage', '--focus', '-o', path)).err, `table: ${path}\n`)
  const table = await openTable(path)
  const rows = await Array.fromAsync(table.rows())
  const billed = table.columns.findIndex(({ name }) => name === 'BilledCost')
  assert.equal(
    rows.reduce((sum, { cells }) => sum + Number(String(cells[billed]).replace('.', '')), 0),
    9_000,
  )
  assert.match((await offpeak(service, 'usage', '--focus')).err, /--focus needs a file/)
  for (const name of ['a.jsonl', 'a.txt', 'a.csv.gz'])
    assert.match(
      (await offpeak(service, 'usage', '--focus', '-o', name)).err,
      /FOCUS is written as .csv or .parquet/,
    )
  await rm(folder, { recursive: true })
  const past = await offpeak(service, 'usage', '--start', '2020-01-01', '--end', '2020-02-01')
  assert.match(past.out, /^From 2020-01-01 to before 2020-02-01: 0 lines /)
  assert.match((await offpeak(service, 'usage', '--group-by', 'week')).err, /Expected some of entity, /)
})

test('a bar shows that something is spent, and is full only when all is', () => {
  assert.equal(bar(0), '░'.repeat(20))
  assert.equal(bar(0.0001), `█${'░'.repeat(19)}`)
  assert.equal(bar(0.5), '█'.repeat(10) + '░'.repeat(10))
  assert.equal(bar(0.999), `${'█'.repeat(19)}░`)
  assert.equal(bar(1), '█'.repeat(20))
  assert.equal(bar(7), '█'.repeat(20))
})

test('an estimate says what a file may cost and which limits it meets, and leaves nothing', async () => {
  await using upstream = await testUpstream()
  await using service = await TestService.start(configFor(upstream.base_url))
  const folder = await mkdtemp(join(tmpdir(), 'offpeak-estimate-'))
  try {
    const input = join(folder, 'in.jsonl')
    const lines = [line('a', 'a', { max_tokens: 100 }), line('b', 'b', { max_tokens: 50 })]
    await writeFile(input, lines.map((one) => JSON.stringify(one)).join('\n'))
    await offpeakJson(service, 'limits', 'create', '--entity', 'user:1', '--usd', '5')
    const fine = await offpeak(service, 'run', input, '--estimate', '--entity', 'user:1')
    assert.equal(fine.code, 0, fine.err)
    assert.match(
      fine.out,
      /^2 lines, about \d+ input tokens, at most 150 output tokens: at most \$0\.0000\d+\.\n/,
    )
    assert.match(fine.out, /^2 +\d+ +150 +\$0\.0000\d+ +m +user:1$/m)
    assert.match(fine.out, /^lim_\w+ +user:1 +\$5\.00 +\$0\.00 +\$0\.00 +\$0\.0000\d+ +block +sufficient$/m)
    const asked = await offpeak(service, 'run', input, '--estimate', '--reask', '2')
    assert.match(asked.out, / at most 450 output tokens: /)

    const limit = await offpeakJson<Limit>(service, 'limits', 'create', '--project', '--tokens', '10')
    const dear = await offpeak(service, 'run', input, '--estimate')
    assert.equal(dear.code, 1)
    assert.match(dear.out, / exceeded$/m)
    assert.match(
      dear.out,
      new RegExp(`^The batch would be refused: it would exceed ${limit.id}, whose window ends at `, 'm'),
    )
    assert.equal(upstream.calls.length, 0)
    for (const list of ['/v1/batches', '/v1/files'])
      assert.deepEqual((await service.json<{ data: object[] }>('GET', list)).data, [])
  } finally {
    await rm(folder, { recursive: true, force: true })
  }
})
