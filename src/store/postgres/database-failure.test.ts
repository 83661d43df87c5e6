import assert from 'node:assert/strict'
import { once } from 'node:events'
import { connect } from 'node:net'
import test from 'node:test'
import { DatabaseFailure } from '../store.ts'
import { startupFailure } from './database-failure.ts'

test('a server that nobody reaches is told as the database, with what to do', async () => {
  const [refused] = await once(connect(1, '127.0.0.1').on('connect', assert.fail), 'close').catch((e) => [e])
  const trouble = startupFailure(refused)
  assert.ok(trouble instanceof DatabaseFailure)
  assert.match(
    trouble.message,
    /^the database cannot be reached \(connect ECONNREFUSED 127\.0\.0\.1:1\)\. Start it, /,
  )
})

test('a server that lets nobody in is told as the database, anything else is left as it is', () => {
  const denied = Object.assign(new Error('password authentication failed for user "x"'), { code: '28P01' })
  assert.match(
    String(startupFailure(denied)),
    /the database does not let us in \(password authentication failed for user "x"\)\. Mend /,
  )
  const bug = new TypeError('x is not a function')
  assert.equal(startupFailure(bug), bug)
})
