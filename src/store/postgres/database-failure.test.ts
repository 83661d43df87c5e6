import assert from 'node:assert/strict'
import { once } from 'node:events'
import { connect } from 'node:net'
import test from 'node:test'
import { DatabaseFailure } from '../store.ts'
import { isUnavailable, outageFailure, startupFailure } from './database.ts'

test('a server that nobody reaches is told as the database, with what to do', async () => {
  const [refused] = await once(connect(1, '127.0.0.1').on('connect', assert.fail), 'close').catch((e) => [e])
  const failure = startupFailure(refused)
  assert.ok(failure instanceof DatabaseFailure)
  assert.match(
    failure.message,
    /^the database cannot be reached \(connect ECONNREFUSED 127\.0\.0\.1:1\)\. Start it, /,
  )
})

test('a server that has no connection left is told as such, with what to change', () => {
  const full = Object.assign(new Error('sorry, too many clients already'), { code: '53300' })
  for (const told of [startupFailure, outageFailure])
    assert.match(
      String(told(full)),
      /takes no further connection \(sorry, .*\)\. Raise its `max_connections`/,
    )
})

test('a start that is not answered in time says so', () => {
  for (const code of ['57014', '55P03'])
    assert.match(
      String(startupFailure(Object.assign(new Error('canceling'), { code }))),
      /in time \(canceling\)/,
    )
})

test('a server that lets nobody in is told as the database, anything else is left as it is', () => {
  const denied = Object.assign(new Error('password authentication failed for user "x"'), { code: '28P01' })
  assert.match(
    String(startupFailure(denied)),
    /the database rejects the connection \(password authentication failed for user "x"\)\. Fix /,
  )
  const bug = new TypeError('x is not a function')
  assert.equal(startupFailure(bug), bug)
})

test('a session that the server ends for its time is a connection that another one replaces', () => {
  for (const code of ['25P03', '25P04', '57P05'])
    assert.ok(isUnavailable(Object.assign(new Error('terminating connection'), { code })), code)
})
