// Webhooks and events from a shell, against the real service.
import assert from 'node:assert/strict'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { fastClock } from '../fakes/clock.ts'
import { offpeak, offpeakJson, runOffpeak } from '../fakes/offpeak.ts'
import { testReceiver } from '../fakes/receiver.ts'
import { unreliableProxy } from '../fakes/unreliable-proxy.ts'
import { testUpstream } from '../fakes/upstream.ts'
import { configFor, line, TestService } from '../service.ts'

interface Webhook {
  id: string
  secret: string
  enabled: boolean
  event_types: string[] | null
}

test('a webhook is made, shown, rotated, disabled, enabled and deleted', async () => {
  await using service = await TestService.start(configFor('http://127.0.0.1:1/v1'), { worker: false })
  const made = await offpeak(
    service,
    'webhooks',
    'create',
    'https://hooks.example/',
    '--description',
    'pager',
  )
  assert.equal(made.code, 0, made.err)
  assert.match(made.out, /^secret +whsec_/m)
  assert.match(made.err, /shown only once/)
  const some = await offpeakJson<Webhook>(
    service,
    ...['webhooks', 'create', 'https://hooks.example/2', '--events', 'batch.failed,limit.reached'],
  )
  assert.deepEqual(some.event_types, ['batch.failed', 'limit.reached'])
  const list = await offpeak(service, 'webhooks', 'list')
  assert.match(list.out, /^ID +ENABLED +CREATED +EVENTS +URL\n/)
  assert.match(
    list.out,
    new RegExp(`^${some.id} +yes .* batch\\.failed,limit\\.reached +https://hooks\\.example/2$`, 'm'),
  )
  assert.match(list.out, / all +https:\/\/hooks\.example\/$/m)

  const rotated = await offpeakJson<Webhook>(service, 'webhooks', 'rotate', some.id, '--overlap', '60')
  assert.notEqual(rotated.secret, some.secret)
  assert.equal((await offpeakJson<Webhook>(service, 'webhooks', 'disable', some.id)).enabled, false)
  assert.match((await offpeak(service, 'webhooks', 'list')).out, new RegExp(`^${some.id} +no `, 'm'))
  assert.equal((await offpeakJson<Webhook>(service, 'webhooks', 'enable', some.id)).enabled, true)
  const shown = await offpeak(service, 'webhooks', 'get', some.id)
  assert.match(shown.out, /^enabled +true$/m)
  assert.ok(!shown.out.includes('whsec_'))

  assert.equal((await offpeak(service, 'webhooks', 'delete', some.id)).err, `${some.id} is deleted.\n`)
  const gone = await offpeak(service, 'webhooks', 'get', some.id)
  assert.equal(gone.code, 1)
  assert.match(gone.err, /There is no such webhook/)
})

test('a webhook that could not work is refused with the reason', async () => {
  await using service = await TestService.start(configFor('http://127.0.0.1:1/v1'), { worker: false })
  const plain = await offpeak(service, 'webhooks', 'create', 'http://hooks.example/')
  assert.equal(plain.code, 1)
  assert.match(plain.err, /must begin with https/)
  const type = await offpeak(
    service,
    'webhooks',
    'create',
    'https://hooks.example/',
    '--events',
    'batch.done',
  )
  assert.equal(type.code, 1)
  assert.match(type.err, /The types are batch\.completed, /)
})

test('events, deliveries and failures are listed, and what failed is replayed', async () => {
  await using upstream = await testUpstream()
  await using receiver = await testReceiver()
  await using service = await TestService.start(
    configFor(upstream.base_url, 'webhooks: {allow_private_networks: true}'),
    { delivery: { schedule: () => null } },
  )
  const { id, secret } = await offpeakJson<Webhook>(service, 'webhooks', 'create', receiver.url)
  receiver.secret = secret
  receiver.answer = ({ response }) => response.writeHead(503).end('closed for lunch')
  const batch = await service.run([line('a')])
  await service.eventually(async () => {
    const failed = await offpeakJson<object[]>(service, 'webhooks', 'deliveries', id, '--status', 'failed')
    return failed.length > 0 ? true : undefined
  })
  const events = await offpeak(service, 'events', 'list')
  assert.match(events.out, new RegExp(`^evt_\\w+ +\\S+ \\S+ +batch\\.completed +${batch.id}$`, 'm'))
  assert.equal((await offpeakJson<object[]>(service, 'events', 'list', '--type', 'batch.failed')).length, 0)
  const [event] = await offpeakJson<{ id: string }[]>(service, 'events', 'list')
  assert.match((await offpeak(service, 'events', 'get', event?.id ?? '')).out, /^type +batch\.completed$/m)

  const deliveries = await offpeak(service, 'webhooks', 'deliveries', id)
  assert.match(deliveries.out, /^evt_\w+ +batch\.completed +failed +1 .* status 503: closed for lunch$/m)
  receiver.answer = ({ response }) => response.writeHead(200).end()
  const replayed = await offpeak(service, 'webhooks', 'replay', id)
  assert.equal(replayed.err, '1 event will be sent again.\n')
  await receiver.arrived(2)
  assert.equal(receiver.received[1]?.event?.id, event?.id)
  const again = await offpeakJson<{ queued: number }>(
    service,
    'webhooks',
    'replay',
    id,
    '--event',
    event?.id ?? '',
  )
  assert.equal(again.queued, 1)
  await receiver.arrived(3)
})

test('a document is planned, applied, found to differ, and pruned', async () => {
  await using service = await TestService.start(configFor('http://127.0.0.1:1/v1'), { worker: false })
  service.key = await service.operatorKey()
  const folder = await mkdtemp(join(tmpdir(), 'offpeak-apply-'))
  const path = join(folder, 'desired.yaml')
  const apply = async (text: string, ...args: string[]) => {
    await writeFile(path, text)
    return await offpeak(service, 'apply', '-f', path, ...args)
  }
  const document = (amount: number): string => `projects:
  - name: team-a
    limits: [{scope: project, metric: cost_usd, amount: ${amount}, window: month}]
    webhooks: [{url: "https://hooks.example/a"}]
`
  const planned = await apply(document(5), '--dry-run')
  assert.deepEqual(
    [planned.code, planned.out, planned.err],
    [
      2,
      '+ project team-a: name team-a, plan payg\n' +
        '+ limit of team-a: scope project, metric cost_usd, amount 5, window month, action block\n' +
        '+ webhook of team-a: url https://hooks.example/a, enabled true\n',
      '3 objects to create, 0 to change, 0 to delete; nothing was changed.\n',
    ],
  )
  const made = await apply(document(5))
  assert.equal(made.code, 0, made.err)
  assert.match(made.out, /^wh_\w+ https:\/\/hooks\.example\/a: its secret is whsec_\S+, shown this once$/m)
  const same = await apply(document(5), '--dry-run', '--prune')
  assert.deepEqual([same.code, same.out, same.err], [0, '', 'Nothing differs.\n'])
  const changed = await apply(document(7))
  assert.match(changed.out, /^~ limit lim_\w+ of team-a: amount 5 -> 7\n$/)
  const pruned = await apply('projects: [{name: team-a, limits: []}]', '--prune')
  assert.match(pruned.out, /^- limit lim_\w+ of team-a: scope project, metric cost_usd, amount 7, /)
  for (const [text, error] of [
    ['projects: {a: b}', /has no list of projects/],
    ['projects: [{name: a}]\nlimits: []', /has the key "limits"; a document has projects alone/],
    ['projects: [{name: a}, {name: a}]', /has the project "a" twice/],
    ['projects: [', /cannot be read/],
    [`projects: [{name: b}, {name: a, limits: [{scope: galaxy}]}]`, /yaml, project a: `limits\.0\./],
  ] as const) {
    const wrong = await apply(text)
    assert.equal(wrong.code, 1)
    assert.match(wrong.err, error)
  }
  await rm(folder, { recursive: true })
})

test('the secrets of projects that were applied are shown though a later project fails', async () => {
  await using service = await TestService.start(configFor('http://127.0.0.1:1/v1'), { worker: false })
  const apiKey = await service.operatorKey()
  const proxy = await unreliableProxy(service.url)
  let applied = 0
  proxy.lose = ({ path }) => (path.includes('dry_run=false') && ++applied > 1 ? 'busy' : null)
  const folder = await mkdtemp(join(tmpdir(), 'offpeak-apply-'))
  const path = join(folder, 'desired.yaml')
  const project = (name: string): string =>
    `{name: ${name}, webhooks: [{url: "https://hooks.example/${name}"}]}`
  await writeFile(path, `projects: [${project('a')}, ${project('b')}]`)
  const access = { baseUrl: proxy.url, apiKey }
  const { code, out, err } = await runOffpeak(['apply', '-f', path], { access, clock: fastClock() })
  assert.deepEqual([code, /desired\.yaml, project b: /.test(err)], [1, true], err)
  assert.match(out, /^wh_\w+ https:\/\/hooks\.example\/a: its secret is whsec_\S+, shown this once$/m)
  await proxy.close()
  await rm(folder, { recursive: true })
})
