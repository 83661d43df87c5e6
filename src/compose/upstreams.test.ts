import assert from 'node:assert/strict'
import { test } from 'node:test'
import { testClock } from '../../test/fakes/clock.ts'
import { ResponseMemory } from '../backends/response-memory.ts'
import { loadConfig } from '../config/load.ts'
import { ConfiguredUpstreams } from './upstreams.ts'

const MODELS = `[{id: m, upstreams: [
  {type: openai, base_url: "http://pods.test/v1", discover: dns}, {type: openai, base_url: "http://one.test/v1"}]}]`

test('lines in flight leave files to the stores, however many addresses a name has', async () => {
  const config = loadConfig({ env: { OFFPEAK_MODELS: MODELS }, cwd: import.meta.dirname })
  let addresses: readonly string[] = []
  const configured = new ConfiguredUpstreams(config, {
    budget: new ResponseMemory(1),
    clock: testClock(),
    log: { info() {}, warn() {}, error() {} },
    addressesOf: () => addresses,
    openFilesMax: () => 48 + 120,
  })
  const first = configured.of(config).get('m') ?? []
  assert.deepEqual(
    first.map((one) => one.placesAllowed(0)),
    [60, 60],
  )
  addresses = ['127.0.0.2', '127.0.0.3', '127.0.0.4']
  const later = configured.of(config).get('m') ?? []
  assert.deepEqual(
    later.map((one) => one.placesAllowed(0)),
    [30, 30, 30, 30],
  )
  assert.equal(later[3], first[1], 'what is known of a server is kept')
  await Promise.all(later.map((one) => one.close()))
})
