import assert from 'node:assert/strict'
import { test } from 'node:test'
import { entityOf, entityType } from './entity.ts'

test('the line names the entity before the batch, and the batch before the header', () => {
  assert.equal(entityOf({ entity: 'a' }, { entity: 'b' }, 'c'), 'a')
  assert.equal(entityOf({ tags: 'x' }, { entity: 'b' }, 'c'), 'b')
  assert.equal(entityOf(null, {}, 'c'), 'c')
  assert.equal(entityOf(undefined, undefined, undefined), null)
})

test('an empty entity names nobody', () => {
  assert.equal(entityOf({ entity: '' }, { entity: 'b' }, null), 'b')
  assert.equal(entityOf({}, {}, ''), null)
})

test('whitespace around an entity is no part of it, wherever it is named', () => {
  for (const entity of [' user:42 ', '\tuser:42\n', '\u00a0user:42\u3000', 'user:42']) {
    assert.equal(entityOf({ entity }, null, null), 'user:42')
    assert.equal(entityOf(null, { entity }, null), 'user:42')
    assert.equal(entityOf(null, null, entity), 'user:42')
  }
  assert.equal(entityOf({ entity: ' ' }, { entity: 'b' }, null), 'b')
})

test('colon, slash and underscore all separate the type', () => {
  for (const entity of ['user:42', 'user/42', 'user_42', 'user:a_b/c'])
    assert.equal(entityType(entity), 'user')
})

test('an entity without both parts has no type', () => {
  for (const entity of ['user', 'user:', ':42', '_', '']) assert.equal(entityType(entity), null)
})
