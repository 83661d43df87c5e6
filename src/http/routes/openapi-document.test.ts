// test/support/contract.ts checks, in every test that calls the server, that answers match the document.
import assert from 'node:assert/strict'
import { globSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import { apiReference } from '../../../docs/generate-api.ts'
import { object, testServer } from '../../../test/support/test-server.ts'

const ROOT = join(import.meta.dirname, '../../..')

function walk(value: unknown, visit: (part: Record<string, unknown>) => void): void {
  if (typeof value !== 'object' || value === null) return
  if (!Array.isArray(value)) visit(object(value))
  for (const part of Object.values(value)) walk(part, visit)
}

test('the document contains every endpoint, each operation once, and every referenced shape', async () => {
  await using server = await testServer()
  const { json } = await server.call('GET', '/openapi.json', { key: null })
  assert.equal(json.openapi, '3.1.0')
  const paths = object(json.paths)
  for (const path of ['/v1/files/{file_id}/content', '/v1/models/{model}', '/v1/batches/{batch_id}/cancel'])
    assert.ok(path in paths, path)
  const operations: unknown[] = []
  const refs: string[] = []
  walk(json, (part) => {
    if ('operationId' in part && 'responses' in part) operations.push(part.operationId)
    if (typeof part.$ref === 'string') refs.push(part.$ref)
  })
  assert.equal(new Set(operations).size, operations.length)
  const described = server.app.routeTable.all.filter(({ doc }) => doc !== null)
  assert.ok(operations.length >= described.length)
  for (const ref of refs) {
    const target = ref
      .slice(2)
      .split('/')
      .reduce((here: unknown, step) => object(here)[step], json)
    assert.ok(target, ref)
  }
})

test('what makes an object links to every endpoint of that object', async () => {
  await using server = await testServer()
  const { json } = await server.call('GET', '/openapi.json', { key: null })
  const linked = (path: string): string[] =>
    Object.keys(object(object(object(object(object(object(json.paths)[path]).post).responses)['200']).links))
  assert.deepEqual(linked('/v1/batches').sort(), [
    ...[
      'cancelBatch',
      'estimateBatch',
      'exportBatch',
      'getBatch',
      'getBatchErrors',
      'getBatchResults',
      'getBatchTimeline',
    ],
    ...['listBatchLines', 'pauseBatch', 'resumeBatch', 'retryBatch'],
  ])
  assert.deepEqual(linked('/v1/files').sort(), ['createBatch', 'deleteFile', 'getFile', 'getFileContent'])
  assert.ok(linked('/v1/uploads').includes('completeUpload'))
  for (const path of ['/v1/limits', '/v1/webhooks', '/v1/keys', '/v1/projects'])
    assert.ok(linked(path).length >= 2, path)
})

test('it names the scopes and errors of each endpoint', async () => {
  await using server = await testServer()
  const { json } = await server.call('GET', '/openapi.json', { key: null })
  const remove = object(object(object(json.paths)['/v1/files/{file_id}']).delete)
  assert.deepEqual(remove.security, [{ api_key: ['files:delete'] }, { api_key: ['files:write'] }])
  assert.deepEqual(Object.keys(object(remove.responses)), [
    '200',
    '400',
    '401',
    '403',
    '404',
    '422',
    '429',
    '500',
    '503',
  ])
})

test('the API reference of a package names every endpoint, parameter, field and error code', async () => {
  await using server = await testServer()
  const { json } = await server.call('GET', '/openapi.json', { key: null })
  const sections = (await apiReference()).split(/^### /m)
  const section = (title: string): string => sections.find((one) => one.startsWith(`${title}\n`)) ?? ''
  const common = sections[0] ?? ''
  for (const { method, path, operation, names } of callsOf(json)) {
    const text = section(`${method} ${path}`)
    for (const name of names) assert.ok(text.includes(`\n| \`${name}\``), `${path}: ${name}`)
    for (const response of Object.values(object(operation.responses)))
      for (const media of Object.values(object(object(response).content ?? {})))
        for (const code of Object.keys(object(object(media).examples ?? {})))
          assert.ok(`${common}${text}`.includes(`\`${code}\``), `${path}: ${code}`)
  }
  for (const [name, schema] of Object.entries(object(object(json.components).schemas)))
    for (const field of fieldsOf(schema)) assert.ok(section(name).includes(`${field}\``), `${name}.${field}`)
})

test('docs/ name every parameter of a call and every field of a request', async () => {
  await using server = await testServer()
  const { json } = await server.call('GET', '/openapi.json', { key: null })
  const pages = globSync('docs/*.md', { cwd: ROOT, exclude: ['docs/api-reference.md'] })
  const words = pages.flatMap(
    (path) => readFileSync(join(ROOT, path), 'utf8').match(/[\w-]+(\[\w+\])?/g) ?? [],
  )
  const schemas = object(object(json.components).schemas)
  const asked = callsOf(json).flatMap(({ operation, names }) => {
    const bodies = Object.values(object(object(operation.requestBody ?? {}).content ?? {}))
    const shapes = bodies.map((media) => object(object(media).schema ?? {}))
    return [...names, ...shapes.flatMap(({ $ref, ...own }) => fieldsOf(schemas[nameOf($ref)] ?? own))]
  })
  assert.ok(asked.length > 100)
  const named = new Set<string>(words)
  assert.deepEqual(
    [...new Set(asked)].filter((name) => !named.has(name)),
    [],
  )
})

interface DescribedCall {
  method: string
  path: string
  operation: Record<string, unknown>
  /** The names of the operation's parameters. */
  names: string[]
}

function callsOf(json: Record<string, unknown>): DescribedCall[] {
  return Object.entries(object(json.paths)).flatMap(([path, methods]) =>
    Object.entries(object(methods)).map(([method, found]) => {
      const operation = object(found)
      const parameters = Array.isArray(operation.parameters) ? operation.parameters : []
      const names = parameters.map((one) => String(object(one).name))
      return { method: method.toUpperCase(), path, operation, names }
    }),
  )
}

function nameOf(ref: unknown): string {
  return String(ref).slice(String(ref).lastIndexOf('/') + 1)
}

/** The names of all fields in a shape, including those of nested objects. */
function fieldsOf(schema: unknown): string[] {
  const names: string[] = []
  walk(schema, ({ properties }) => {
    if (typeof properties === 'object' && properties !== null) names.push(...Object.keys(properties))
  })
  return names
}

test('docs/api.md names every endpoint, with the scopes that it takes', async () => {
  await using server = await testServer()
  const { json } = await server.call('GET', '/openapi.json', { key: null })
  const rows = readFileSync(join(ROOT, 'docs/api.md'), 'utf8')
    .split('\n')
    .filter((row) => row.startsWith('| `'))
  for (const [path, methods] of Object.entries(object(json.paths))) {
    for (const [method, operation] of Object.entries(object(methods))) {
      const parent = path.slice(0, path.lastIndexOf('/'))
      const last = path.slice(path.lastIndexOf('/'))
      const whole = `${method.toUpperCase()} ${path}`
      const named = rows.filter(
        (row) =>
          [`\`${whole}\``, `\`${whole}?`].some((name) => row.includes(name)) ||
          // `GET /v1/x/{id}`, `DELETE …`, or `POST …/resume`.
          (row.includes(path) && row.includes(`\`${method.toUpperCase()} …\``)) ||
          (row.includes(parent) && row.includes(`\`${method.toUpperCase()} …${last}\``)),
      )
      assert.notEqual(named.length, 0, whole)
      const { security } = object(operation)
      const scopes = Array.isArray(security)
        ? security.flatMap((one) => Object.values(object(one)).flat().map(String))
        : []
      for (const scope of scopes)
        assert.ok(
          named.some((row) => row.includes(`\`${scope}\``)),
          `${whole}: ${scope}`,
        )
    }
  }
})
