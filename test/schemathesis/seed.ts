// Fills a service with an object of every kind and prints the configuration of schemathesis that names them, so that
// its calls reach more than "there is no such batch".
//
//   OFFPEAK_BASE_URL=… OFFPEAK_API_KEY=… node test/schemathesis/seed.ts

const base = process.env.OFFPEAK_BASE_URL ?? 'http://127.0.0.1:8080'
const headers = { authorization: `Bearer ${process.env.OFFPEAK_API_KEY ?? ''}` }

async function call(method: string, path: string, body?: object): Promise<Record<string, unknown>> {
  const isForm = body instanceof FormData
  const answer = await fetch(`${base}${path}`, {
    method,
    headers: { ...headers, ...(body && !isForm ? { 'content-type': 'application/json' } : {}) },
    ...(body ? { body: isForm ? body : JSON.stringify(body) } : {}),
  })
  const text = await answer.text()
  if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status} ${text}`)
  return { ...JSON.parse(text), request_id: answer.headers.get('x-service-request-id') }
}

async function idOf(method: string, path: string, body?: object): Promise<string> {
  return String((await call(method, path, body)).id)
}

/** Several, since some calls delete what they are given. */
async function several(make: (i: number) => Promise<string>): Promise<string[]> {
  return await Promise.all(Array.from({ length: 6 }, (_, i) => make(i)))
}

function form(fields: Record<string, string | Blob>): FormData {
  const data = new FormData()
  for (const [name, value] of Object.entries(fields)) data.set(name, value)
  return data
}

const lines = ['a', 'b', 'no-such-model'].map((custom_id) =>
  JSON.stringify({
    custom_id,
    method: 'POST',
    url: '/v1/chat/completions',
    body: {
      model: custom_id === 'no-such-model' ? custom_id : 'sim-1',
      messages: [{ role: 'user', content: 'Hello' }],
    },
  }),
)
const upload = (): Promise<string> =>
  idOf('POST', '/v1/files', form({ purpose: 'batch', file: new Blob([lines.join('\n')]) }))
const create = (input_file_id: string, start_after: number | null): Promise<string> =>
  idOf('POST', '/v1/batches', {
    ...{ input_file_id, endpoint: '/v1/chat/completions', completion_window: '24h' },
    ...{ metadata: { entity: 'user:1' }, start_after },
  })

const limits = await several((i) =>
  idOf('POST', '/v1/limits', {
    ...{ scope: 'entity', entity: `user:${i}`, metric: 'cost_usd', amount: 100, window: 'month' },
  }),
)
const webhooks = await several((i) => idOf('POST', '/v1/webhooks', { url: `https://example.com/hook/${i}` }))
const keys = await several((i) => idOf('POST', '/v1/keys', { name: `seeded ${i}`, scopes: ['batches:read'] }))
const files = await several(upload)
// Some of them stay unfinished.
const inAnHour = Math.floor(Date.now() / 1000) + 3600
const batches = await several(async (i) => await create(await upload(), i < 3 ? null : inAnHour))
const uploads = await several((i) =>
  idOf('POST', '/v1/uploads', {
    ...{ filename: `parts-${i}.jsonl`, purpose: 'batch', bytes: 3, mime_type: 'application/jsonl' },
  }),
)
for (const id of uploads) await call('POST', `/v1/uploads/${id}/parts`, form({ data: new Blob(['abc']) }))
const { request_id } = await call('GET', '/v1/quotas')
const projects = [String((await call('POST', '/v1/projects', { name: 'seeded' })).id)]
const ended = async (id: string): Promise<boolean> =>
  (await call('GET', `/v1/batches/${id}`)).status === 'completed'
while (!(await ended(batches[0] ?? ''))) await new Promise((resolve) => setTimeout(resolve, 50))
const events = (await call('GET', '/v1/events')).data
const eventIds = Array.isArray(events) ? events.map(({ id }) => String(id)) : []

const known: Record<string, readonly string[]> = {
  'path.file_id': files,
  'path.batch_id': batches,
  'path.line': ['1', '2', '3'],
  'path.limit_id': limits,
  'path.webhook_id': webhooks,
  'path.key_id': keys,
  'path.upload_id': uploads,
  'path.event_id': eventIds,
  'path.project_id': projects,
  'path.request_id': [String(request_id)],
  'path.model': ['sim-1'],
  'body.input_file_id': files,
  'body.event_id': eventIds,
}

const parts = [
  `\
[cache]
enabled = false

# What a call finds decides, and no schema tells of it: 422 of a batch that has ended, 413 of a part that is larger than
# its upload, 416 of a range of an empty file.
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "3xx", 401, 403, 404, 409, 413, 416, 422, 429, "5xx"]

# 413 rejects as well: a file that is larger than the service takes.
[checks.negative_data_rejection]
expected-statuses = [400, 401, 403, 404, 405, 406, 409, 413, 415, 422, 428, 429, "5xx"]

# JSON Schema has no words for "\`end\` is not before \`start\`".
[[operations]]
include-operation-id = "getUsage"
[operations.checks.positive_data_acceptance]
expected-statuses = ["2xx", "3xx", 400, 401, 403, 404, 409, 422, 429, "5xx"]

# What a body may hold depends on the endpoint and the model that it names.
[[operations]]
include-operation-id = "createRequest"
[operations.checks.positive_data_acceptance]
expected-statuses = ["2xx", "3xx", 400, 401, 403, 404, 409, 413, 422, 429, "5xx"]

[[operations]]
include-operation-id = "createResponse"
[operations.checks.positive_data_acceptance]
expected-statuses = ["2xx", "3xx", 400, 401, 403, 404, 409, 413, 422, 429, "5xx"]

# What an amount may be depends on the metric of the limit that is changed.
[[operations]]
include-operation-id = "updateLimit"
[operations.checks.positive_data_acceptance]
expected-statuses = ["2xx", "3xx", 400, 401, 403, 404, 409, 422, 429, "5xx"]

# A key that was revoked can still be read: its \`revoked_at\` says since when.
[[operations]]
include-operation-id = "getKey"
[operations.checks.use_after_free]
enabled = false

# What makes an object is followed by calls about that object, by the links of the document alone.
[phases.stateful]
generation.max-examples = 30
[phases.stateful.inference]
algorithms = []

# OpenAPI has no words for parameters that exclude a part of the body: a dry run takes no lines.
[[operations]]
include-operation-id = "createBatch"
[operations.checks.positive_data_acceptance]
expected-statuses = ["2xx", "3xx", 400, 401, 403, 404, 409, 413, 422, 429, "5xx"]

# What each limit and webhook may be is told of the calls that make one; a cursor of the audit log is any record's.
[[operations]]
include-operation-id = "applyProject"
[operations.checks.positive_data_acceptance]
expected-statuses = ["2xx", "3xx", 400, 401, 403, 404, 409, 422, 429, "5xx"]

[[operations]]
include-operation-id = "exportAudit"
[operations.checks.positive_data_acceptance]
expected-statuses = ["2xx", "3xx", 400, 401, 403, 404, 409, 422, 429, "5xx"]

# OpenAPI has no words for parameters that exclude each other: a table has no pages.
[[operations]]
include-operation-id = "getBatchResults"
[operations.checks.positive_data_acceptance]
expected-statuses = ["2xx", "3xx", 400, 401, 403, 404, 409, 422, 429, "5xx"]
`,
]
for (const [i, [name, values]] of Object.entries(known).entries()) {
  parts.push(`[dictionaries.known_${i}]\nvalues = ${JSON.stringify(values)}\n`)
  parts.push(`[parameters."${name}"]\ndictionary = "known_${i}"\nprobability = 0.8\n`)
}
process.stdout.write(`${parts.join('\n')}\n`)
