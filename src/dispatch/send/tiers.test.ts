import assert from 'node:assert/strict'
import { test } from 'node:test'
import { chooseUpstream } from './choose-upstream.ts'
import { type Spill, Tiers } from './tiers.ts'

interface Stub {
  name: string
  tier: number
  downSince: number | null
  places: number
  busy: number
  linesThere: number
  placesAllowed(now: number): number
  freePlaces(now: number): number
  accepts(now: number): boolean
  limit: { limit: number }
}

function stub(name: string, tier: number, more: Partial<Stub> = {}): Stub {
  return {
    name,
    tier,
    downSince: null,
    places: 10,
    busy: 0,
    linesThere: 0,
    placesAllowed() {
      return this.places
    },
    freePlaces() {
      return this.places - this.busy
    },
    accepts() {
      return this.downSince === null && this.freePlaces(0) > 0
    },
    limit: { limit: 10 },
    ...more,
  }
}

const SPILL: Spill = { whenDownMs: 1000, whenAtRisk: true }
const names = (tiers: readonly (readonly Stub[])[]): string =>
  tiers.map((tier) => tier.map(({ name }) => name).join('+')).join(' ')

test('a tier is in use when everything below it has been down for long enough', () => {
  const local = stub('local', 0, { downSince: 5000 })
  const spare = stub('spare', 0)
  const hosted = stub('hosted', 1)
  const tiers = new Tiers([hosted, local, spare], SPILL)
  assert.equal(names(tiers.inUse(9000)), 'local+spare')
  spare.downSince = 5500
  assert.deepEqual([names(tiers.inUse(6499)), tiers.nextAt(6499)], ['local+spare', 6500])
  assert.equal(names(tiers.inUse(6500)), 'local+spare hosted')
  local.downSince = null
  assert.equal(names(tiers.inUse(6501)), 'local+spare')
})

test('an upstream outside its hours is not down, and does not keep a tier from counting as down', () => {
  const closed = stub('closed', 0, { places: 0 })
  const local = stub('local', 0, { downSince: 0 })
  const hosted = stub('hosted', 1)
  assert.equal(names(new Tiers([closed, hosted], SPILL).inUse(1e9)), 'closed')
  assert.equal(names(new Tiers([closed, local, hosted], SPILL).inUse(1e9)), 'closed+local hosted')
})

test('each kind of spill-over can be switched off', () => {
  const both = [stub('local', 0, { downSince: 0 }), stub('hosted', 1)]
  const never = new Tiers(both, { whenDownMs: null, whenAtRisk: false })
  assert.equal(names(never.inUse(1e9)), 'local')
  assert.equal(names(never.forAtRisk(1e9)), '')
  assert.equal(never.nextAt(1e9), Number.POSITIVE_INFINITY)
  const atRisk = new Tiers(both, { whenDownMs: null, whenAtRisk: true })
  assert.equal(names(atRisk.forAtRisk(1e9)), 'hosted')
})

test('a line goes to the lowest tier with a place, there to the emptiest upstream, not where it failed last', () => {
  const busy = stub('busy', 0, { busy: 8 })
  const idle = stub('idle', 0, { busy: 2 })
  const hosted = stub('hosted', 1)
  const choose = (avoid: Stub | null = null) => chooseUpstream([[busy, idle], [hosted]], avoid, 0)?.name
  assert.equal(choose(), 'idle')
  assert.equal(choose(idle), 'busy')
  busy.busy = 10
  assert.equal(choose(idle), 'idle')
  idle.busy = 10
  assert.equal(choose(), 'hosted')
  hosted.busy = 10
  assert.equal(choose(), undefined)
})

test('of several batch APIs, the one with the fewest lines gets more, however few are on their way to it', () => {
  const [a, b] = [stub('a', 0, { linesThere: 2000 }), stub('b', 0, { linesThere: 1000, busy: 3 })]
  const choose = (avoid: Stub | null = null) => chooseUpstream([[a, b]], avoid, 0)?.name
  assert.equal(choose(), 'b')
  assert.equal(choose(b), 'a')
  b.busy = b.places
  assert.equal(choose(), 'a')
})
