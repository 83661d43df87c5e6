import assert from 'node:assert/strict'
import { stat } from 'node:fs/promises'
import { test } from 'node:test'
import { type CheckLimits, type SchemaCheck, SchemaChecks } from './schema-checks.ts'

const object = (properties: object, more: object = {}): object => ({ type: 'object', properties, ...more })
const times = <T>(count: number, make: (i: number) => T): T[] =>
  Array.from({ length: count }, (_, i) => make(i))

/** Checks each answer, and returns the verdicts. */
async function verdicts(schema: object, answers: readonly unknown[], limits: Partial<CheckLimits> = {}) {
  const check = new SchemaChecks(limits).begin('p', schema)
  try {
    return await check.verdicts(answers.map((answer) => JSON.stringify(answer)))
  } finally {
    check.close()
  }
}

/** A schema whose pattern tries all divisions of a text, and a text that no division fits. */
const SLOW = { name: { type: 'string', pattern: '^(a+)+$' } }
const SLOW_ANSWER = { name: `${'a'.repeat(60)}b` }

/** A schema in which 2,000 alternatives are each checked against 2,000 keys, and none fits. */
const HUGE = { oneOf: times(2_000, (i) => object({ [`k${i}`]: {} }, { additionalProperties: false })) }
const HUGE_ANSWER = Object.fromEntries(times(2_000, (i) => [`x${i}`, 1]))

test('nested fields, bounds, enums, patterns and references are checked, and the first thing wrong is told', async () => {
  const schema = object(
    {
      label: { enum: ['a', 'b'] },
      why: object({ score: { type: 'number', maximum: 10 } }, { required: ['score'] }),
      code: { type: 'string', pattern: '^[A-Z]{3}$' },
      more: { $ref: '#/$defs/more' },
    },
    { $defs: { more: { type: 'array', items: { type: 'number' } } } },
  )
  const right = { label: 'a', why: { score: 3 }, code: 'ABC', more: [1, 2] }
  const found = await verdicts(schema, [
    right,
    { ...right, label: 'c', code: 'abc' },
    { ...right, why: { score: 11 } },
    { ...right, why: {} },
    { ...right, code: 'abc' },
    { ...right, more: [1, 'two'] },
  ])
  assert.deepEqual(found, [
    null,
    'not_schema: label must be equal to one of the allowed values: ["a","b"]',
    'not_schema: why.score must be <= 10',
    'not_schema: why must have required properties score',
    'not_schema: code must match pattern "^[A-Z]{3}$"',
    'not_schema: more.1 must be number',
  ])
  const [long] = await verdicts(object({ label: { enum: times(900, (i) => `value ${i}`) } }), [
    { label: 'c' },
  ])
  assert.ok(long && long.length < 600, long ?? 'nothing was told')
})

test('a check that takes too long is ended and says so, and the table goes on', async () => {
  const answers = [{ name: 'aa' }, SLOW_ANSWER, { name: 'b' }, SLOW_ANSWER, { name: 'a' }]
  const late = 'not_checked: the answer could not be checked by the schema within 0.1 s'
  assert.deepEqual(await verdicts(object(SLOW), answers, { answerMs: 100 }), [
    null,
    late,
    'not_schema: name must match pattern "^(a+)+$"',
    late,
    null,
  ])
})

test('when the time of a table is used up, each answer that is left says so', async () => {
  const answers = times(50, () => SLOW_ANSWER)
  const found = await verdicts(object(SLOW), answers, { answerMs: 50, tableMs: 300, tableMsPerAnswer: 0 })
  const usedUp = 'not_checked: the time for checking this table by its schema is used up'
  assert.ok(found.includes('not_checked: the answer could not be checked by the schema within 0.05 s'))
  assert.equal(found.at(-1), usedUp)
  assert.ok(found.filter((verdict) => verdict === usedUp).length > 40)
})

test('thousands of alternatives cost this process neither time nor memory', async () => {
  const check = new SchemaChecks({ answerMs: 300 }).begin('p', HUGE)
  const before = process.memoryUsage().rss
  const events: string[] = []
  const found = check.verdicts([JSON.stringify(HUGE_ANSWER)]).finally(() => events.push('checked'))
  for (let i = 0; i < 100; i++) await stat(import.meta.filename)
  events.push('other work')
  assert.match((await found)[0] ?? '', /^not_(schema|checked): /)
  assert.deepEqual(events, ['other work', 'checked'])
  assert.ok(process.memoryUsage().rss - before < 50 * 1024 * 1024)
  check.close()
})

test('a check that takes too much memory ends its process alone, and the other answers are checked', async () => {
  const schema = object({ list: { items: { anyOf: [{ type: 'string' }, { type: 'null' }] } } })
  const answers = [{ list: ['a'] }, { list: times(50_000, () => 1) }, { list: [2] }]
  assert.deepEqual(await verdicts(schema, answers, { heapMib: 16, answerMs: 30_000, tableMs: 60_000 }), [
    null,
    'not_checked: checking the answer by the schema takes more than 16 MiB',
    'not_schema: list.0 must be string',
  ])
})

test('a schema that cannot be used says why', async () => {
  const cannot = async (schema: object, limits: Partial<CheckLimits> = {}): Promise<string> =>
    String(await verdicts(schema, [{}], limits))
  const named = times(2_000, (i) => [`d${i}`, { $id: `urn:x:${i}` }])
  const slow = { $defs: Object.fromEntries(named), oneOf: times(2_000, (i) => ({ $ref: `urn:x:${i}` })) }
  const start = 'not_checked: the schema cannot be used: it'
  assert.match(
    await cannot(object({ a: { pattern: '(' } })),
    new RegExp(`^${start} is no JSON Schema, .*Invalid`),
  )
  assert.equal(await cannot(slow, { compileMs: 100 }), `${start} takes more than 0.1 s to prepare`)
  assert.equal(
    await cannot(object({ a: { description: 'x'.repeat(300_000) } })),
    `${start} is longer than 262144 characters`,
  )
  const check = new SchemaChecks().begin('p', object({}))
  assert.equal(await check.whyUnusable(), null)
  check.close()
})

test('a table that is closed ends its check at once', async () => {
  const checks = new SchemaChecks({ answerMs: 60_000, tableMs: 60_000, processes: 1 })
  const begin = async (project: string): Promise<[SchemaCheck, Promise<unknown>]> => {
    const check = checks.begin(project, object(SLOW))
    assert.equal(await check.whyUnusable(), null)
    return [check, check.verdicts([JSON.stringify(SLOW_ANSWER)])]
  }
  const [first, running] = await begin('a')
  const waits = checks.begin('b', object(SLOW))
  const waiting = waits.verdicts(['{"name":"a"}'])
  first.close()
  await assert.rejects(running, /were closed/)
  // The slot of its process is free.
  assert.deepEqual(await waiting, [null])
  // The slot of a check that was closed before its turn is free as well.
  const [second, other] = await begin('b')
  const third = checks.begin('a', object(SLOW))
  const never = third.verdicts(['{}'])
  third.close()
  await assert.rejects(never, /were closed/)
  second.close()
  await assert.rejects(other, /were closed/)
  waits.close()
})

test('a table that is closed before its process has loaded ends its check, too', async () => {
  const check = new SchemaChecks().begin('a', object(SLOW))
  const running = check.verdicts([JSON.stringify(SLOW_ANSWER)])
  // The check's turn has come, and the process is starting.
  await new Promise(setImmediate)
  check.close()
  await assert.rejects(running, /were closed/)
})

test('a slow table of one project holds up no other project', async () => {
  const checks = new SchemaChecks({ answerMs: 60_000, tableMs: 60_000 })
  const slow = times(3, () => checks.begin('a', object(SLOW)))
  const ended: string[] = []
  const running = slow.map((check) =>
    check.verdicts([JSON.stringify(SLOW_ANSWER)]).catch(() => ended.push('a is closed')),
  )
  const other = checks.begin('b', object(SLOW))
  assert.deepEqual(
    await other.verdicts(times(10, () => '{"name":"a"}')),
    times(10, () => null),
  )
  ended.push('b')
  for (const check of [...slow, other]) check.close()
  await Promise.all(running)
  assert.deepEqual(ended, ['b', 'a is closed', 'a is closed', 'a is closed'])
})
