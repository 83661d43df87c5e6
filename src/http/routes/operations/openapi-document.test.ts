// That answers are as described is held by test-contract.ts, in every test that calls the server.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import { apiReference } from '../../../../docs/generate-api.ts'
import { object, testServer } from '../../../../test/support/test-server.ts'

const ROOT = join(import.meta.dirname, '../../../..')

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
    ...['cancelBatch', 'getBatch', 'getBatchErrors', 'getBatchResults', 'getBatchTimeline', 'listBatchLines'],
    ...['pauseBatch', 'resumeBatch', 'retryBatch'],
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

test('docs/api-reference.md is what npm run docs writes: every endpoint, parameter, field and error code', async () => {
  assert.equal(readFileSync(join(ROOT, 'docs/api-reference.md'), 'utf8'), await apiReference())
})

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
