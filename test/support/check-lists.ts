// Calls every list of the API with each of its filters and each pair of them, in both orders and from a cursor, and
// checks the query plan of every statement.
import assert from 'node:assert/strict'
import { lineRequestId } from '../../src/domain/ids.ts'
import { recordEvent } from '../../src/notify/record-event.ts'
import { listLaterBatches } from '../../src/store/batches.ts'
import { insertChunks } from '../../src/store/chunks.ts'
import { readRow } from '../../src/store/rows.ts'
import type { Store } from '../../src/store/store.ts'
import { PageQuery } from '../../src/wire/shape.ts'
import { WatchedReads } from './query-plans.ts'
import { ONE_LINE, object, type TestServer, testServer } from './test-server.ts'

/** What a filter may be, as its shape says. */
interface FilterShape {
  type?: string
  enum?: readonly unknown[]
  pattern?: string
}

/** Values for filters that are texts of a form. */
const TEXTS: Readonly<Record<string, readonly string[]>> = { status: ['404', '4xx'] }

export async function checkLists(given: Store): Promise<void> {
  await given.migrate()
  const reads = new WatchedReads(given)
  await using server = await testServer({ store: reads.store })
  const operator = await server.issue({ scopes: ['operator', 'keys:read', 'batches:read'] })
  const params = await seed(server)
  const faults = new Set<string>()
  const filtersSeen = new Set<string>()
  const call = async (path: string, key?: string): Promise<string | null> => {
    const answer = await server.call('GET', path, key === undefined ? {} : { key })
    assert.equal(answer.status, 200, `${path}: ${answer.text}`)
    for (const fault of await reads.faults()) faults.add(`GET ${path}\n  ${fault}`)
    return typeof answer.json.last_id === 'string' ? answer.json.last_id : null
  }
  await reads.faults()
  for (const { methods, url, access, doc, accepts } of server.app.routeTable.all) {
    const shape = object(object(doc?.answer ?? {}).properties ?? {})
    if (!methods.includes('GET') || object(shape.object ?? {}).const !== 'list') continue
    const path = url.replace(
      /:(\w+)/g,
      (_, name: string) => params[name] ?? assert.fail(`${url} needs ${name}`),
    )
    const { properties = {}, required = [] } = object(accepts.querystring ?? {})
    // A report of all at once has no pages.
    if (!('limit' in object(properties))) continue
    const all = Object.entries(object(properties))
      .filter(([name]) => !(name in PageQuery))
      .map(([name, of]) => ({ name, values: valuesOf(name, object(of), params) }))
    for (const { name } of all) filtersSeen.add(`${url} ${name}`)
    const isNeeded = ({ name }: { name: string }): boolean =>
      Array.isArray(required) && required.includes(name)
    const needed = queriesOf(all.filter(isNeeded)).at(-1)!
    const filters = all.filter((one) => !isNeeded(one))
    const keys =
      Array.isArray(access) && access.includes('operator') ? [undefined, operator.key] : [undefined]
    for (const key of keys) {
      const last = await call(`${path}?${needed}`, key)
      for (const query of queriesOf(filters))
        for (const place of placesOf(accepts, last)) await call(`${path}?${needed}&${query}&${place}`, key)
    }
  }
  for (const path of ['/v1/live', '/v1/status', '/v1/usage/hours']) await call(path)
  // Clients of Anthropic's API know another form of lists.
  const message = await server.call('POST', '/v1/messages/batches', {
    body: { requests: [{ custom_id: 'a', params: { model: 'sim-1', max_tokens: 1, messages: [] } }] },
  })
  await reads.faults()
  for (const query of ['', `?limit=1000&after_id=${message.id}`, `?before_id=${message.id}`])
    await call(`/v1/messages/batches${query}`)
  const ids = [params.batch_id ?? '']
  await listLaterBatches(reads.store.read, server.key.project_id, { id: 'batch_0', ids, limit: 100 })
  for (const fault of await reads.faults()) faults.add(`the live feed\n  ${fault}`)
  assert.deepEqual([...faults], [])
  assert.ok(filtersSeen.size >= 15, [...filtersSeen].join(', '))
}

function valuesOf(
  name: string,
  { type, enum: values, pattern }: FilterShape,
  params: Readonly<Record<string, string>>,
): readonly string[] {
  if (values) return values.map(String)
  if (pattern !== undefined) return TEXTS[name] ?? assert.fail(`no text of the form of ${name} is known`)
  return [params[name] ?? (type === 'integer' ? '1' : 'x')]
}

/** None, each filter alone with each of its values, and each pair. */
function queriesOf(filters: readonly { name: string; values: readonly string[] }[]): string[] {
  const terms = filters.map(({ name, values }) =>
    values.map((value) => `${name}=${encodeURIComponent(value)}`),
  )
  const pairs = terms.flatMap((some, i) => terms.slice(i + 1).map(([other]) => `${some[0]}&${other}`))
  return ['', ...terms.flat(), ...pairs]
}

function placesOf(accepts: object, last: string | null): string[] {
  const properties = object(object(Object(accepts).querystring).properties)
  if (!('order' in properties))
    return object(properties.after ?? {}).type === 'integer' ? ['limit=2', 'after=1'] : ['limit=2']
  const places = ['order=desc', 'order=asc&limit=100']
  return last === null ? places : [...places, `starting_after=${last}`, `order=asc&starting_after=${last}`]
}

/** One object of every kind; the IDs that paths name. */
async function seed(server: TestServer): Promise<Record<string, string>> {
  const { store } = server.deps
  const { project_id } = server.key
  // A background response is a line that has an input.
  const content = ONE_LINE.replace('"messages"', '"input":"hello","messages"')
  const { id: file_id } = await server.upload(content)
  await server.process(file_id)
  const { id: batch_id } = await server.createBatch(file_id)
  const webhook = await server.call('POST', '/v1/webhooks', { body: { url: 'https://hooks.example/' } })
  const limit = { scope: 'entity', entity: 'user:1', metric: 'tokens', amount: 5, window: 'day' }
  await server.call('POST', '/v1/limits', { body: limit })
  const upload = await server.call('POST', '/v1/uploads', {
    body: { filename: 'in.jsonl', purpose: 'batch', bytes: 10, mime_type: 'text/jsonl' },
  })
  const form = new FormData()
  form.set('data', new Blob(['0123456789']), 'part')
  await server.call('POST', `/v1/uploads/${upload.id}/parts`, { raw: form })
  const span = { line_count: 1, byte_start: 0, byte_end: content.length, model: 'sim-1' }
  await store.write(async (tx) => {
    const now = server.clock.now()
    await recordEvent(tx, { project_id, type: 'limit.reached', data: {} }, now)
    const batch = await readRow(tx, 'batches', { id: batch_id })
    assert(batch)
    await insertChunks(tx, batch, [{ ...span, index: 0, first_line: 1 }])
  })
  const response_id = lineRequestId(batch_id, 1).replace('req_', 'resp_')
  return { batch_id, webhook_id: webhook.id, upload_id: upload.id, project_id, response_id }
}
