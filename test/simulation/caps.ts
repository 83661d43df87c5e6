// Caps of every kind in a simulation: made before the work or in its midst, raised and lowered while it runs; and what
// must hold for each of them afterwards. Their chance is a stream of its own, so that nothing else moves with it.
import { newId } from '../../src/domain/ids.ts'
import { type LimitMetric, type LimitWindow, windowAt } from '../../src/domain/limit.ts'
import { insertLimit, updateLimit } from '../../src/store/limits.ts'
import type { LimitRow } from '../../src/store/schema.ts'
import type { Store, Writer } from '../../src/store/store.ts'
import { resultLines } from './result-lines.ts'
import { type SeededRandom, seededRandom } from './seeded-random.ts'
import type { PlannedBatch, SimulatedRun } from './world.ts'

/** Prompt tokens that a model server counts where estimates hold, and where they are far too low. */
const PROMPT_TOKENS = 1
const PROMPT_TOKENS_LOW = 300
/** A worker reads limits every 300 ms; one that cannot read them goes on no longer than its lease. */
const EFFECT_MS = 5_000
const DAY_MS = 86_400_000
const MACHINES_MAX = 3

interface Cap {
  id: string
  project_id: string
  /** An entity, or '' for the whole project. */
  subject: string
  metric: LimitMetric
  window: LimitWindow
  amount: number
  /** When it was made or changed last; before any line was sent: 0. */
  since: number
}

export class Caps {
  readonly #random: SeededRandom
  readonly #list: Cap[] = []
  /** Whether lines use far more than their estimates: then at most `in_flight` of each machine are out. */
  readonly isLow: boolean
  readonly in_flight = 2
  /** For the night to run over the end of a month. */
  readonly isMonthEnd: boolean
  readonly entities = new Map<string, string>()

  constructor(seed: number) {
    this.#random = seededRandom(seed + 0x5eed)
    this.isLow = this.#random.chance(0.3)
    this.isMonthEnd = this.#random.chance(0.25)
  }

  get prompt_tokens(): number {
    return this.isLow ? PROMPT_TOKENS_LOW : PROMPT_TOKENS
  }

  /** `lines` of them may cost `each` at most: the cap is a share of it. */
  async make(
    write: (change: (tx: Writer) => Promise<void>) => Promise<void>,
    project_id: string,
    lines: number,
    each: { nanos: number; tokens: number },
    now: number,
    isRunning: boolean,
  ): Promise<void> {
    const random = this.#random
    const subject = random.pick(['', '', 'user:a'])
    const metric = random.pick(['cost_usd', 'tokens'] as const)
    const share = lines * random.next() * (subject === '' ? 1 : 0.3)
    const cap: Cap = {
      id: newId('limit', now),
      project_id,
      subject,
      metric,
      window: random.pick(['day', 'month'] as const),
      amount: Math.ceil(share * (metric === 'tokens' ? each.tokens : each.nanos)),
      since: isRunning ? now : 0,
    }
    this.#list.push(cap)
    const scope: LimitRow['scope'] =
      subject === '' ? 'project' : random.chance(0.5) ? 'entity' : 'entity_type'
    await write((tx) =>
      insertLimit(tx, {
        id: cap.id,
        project_id,
        scope,
        subject: scope === 'entity_type' ? 'user' : subject,
        metric,
        amount: cap.amount,
        window: cap.window,
        action: 'block',
        description: null,
        notify_at: '[0.5]',
        created: now,
      }),
    )
  }

  /** One of them is raised or lowered; false when there is none. */
  async change(
    write: (change: (tx: Writer) => Promise<void>) => Promise<void>,
    now: number,
  ): Promise<boolean> {
    if (this.#list.length === 0) return false
    const cap = this.#random.pick(this.#list)
    cap.amount = Math.ceil(cap.amount * 2 * this.#random.next())
    cap.since = now
    await write(async (tx) => {
      await updateLimit(tx, cap.project_id, cap.id, { amount: cap.amount })
    })
    return true
  }

  wants(p: number): boolean {
    return this.#random.chance(p)
  }

  /**
   * Of each cap and window: no more is spent than it allows, or than lines cost that were sent before the cap took
   * effect; and, where estimates are too low, what lines in flight cost beyond theirs.
   */
  async violations(night: SimulatedRun): Promise<string[]> {
    const found: string[] = []
    for (const cap of this.#list) {
      const excess = this.isLow ? MACHINES_MAX * this.in_flight * this.#excess(cap.metric) : 0
      const before = cap.since === 0 ? 0 : await sentBefore(night, cap, cap.since + EFFECT_MS)
      for (const [start, spent] of await spentByWindow(night.store, cap)) {
        const bound = Math.max(cap.amount, before) + excess
        if (spent <= bound) continue
        const when = new Date(start).toISOString().slice(0, 10)
        const whom = cap.subject === '' ? 'the project' : cap.subject
        found.push(
          `${whom} has spent ${spent} (${cap.metric}, ${cap.window} of ${when}); its cap is ${cap.amount}, ${before} was sent before it took effect, and lines in flight may pass it by ${excess}`,
        )
      }
    }
    return found
  }

  #excess(metric: LimitMetric): number {
    return metric === 'tokens' ? PROMPT_TOKENS_LOW : PROMPT_TOKENS_LOW * 1_000
  }
}

async function spentByWindow(store: Store, cap: Cap): Promise<Map<number, number>> {
  let query = store.read.selectFrom('ledger_entries').selectAll().where('project_id', '=', cap.project_id)
  if (cap.subject !== '') query = query.where('entity', '=', cap.subject)
  const spent = new Map<number, number>()
  for (const { day, tokens, cost_nanos } of await query.execute()) {
    const { start } = windowAt(cap.window, day * DAY_MS)
    spent.set(start, (spent.get(start) ?? 0) + (cap.metric === 'tokens' ? tokens : cost_nanos))
  }
  return spent
}

/** What was billed for lines that were last asked before `at`. */
async function sentBefore(night: SimulatedRun, cap: Cap, at: number): Promise<number> {
  let sum = 0
  for (const planned of night.batches.filter(({ project_id }) => project_id === cap.project_id))
    for (const text of await outputsOf(night, planned)) {
      const { custom_id, response } = JSON.parse(text)
      if (cap.subject !== '' && night.caps.entities.get(custom_id) !== cap.subject) continue
      if ((night.server.askedAt.get(custom_id) ?? 0) >= at) continue
      const { total_tokens, cost_usd } = response.body.usage
      sum += cap.metric === 'tokens' ? total_tokens : Math.round(cost_usd * 1e9)
    }
  return sum
}

async function outputsOf(night: SimulatedRun, planned: PlannedBatch): Promise<string[]> {
  if (planned.read) return planned.read.outputs
  const batch = await night.store.read
    .selectFrom('batches')
    .selectAll()
    .where('id', '=', planned.id)
    .executeTakeFirstOrThrow()
  return (await resultLines(night, batch)).outputs
}
