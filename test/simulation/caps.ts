// Caps in a simulation: created before or during the work, raised and lowered while it runs, and checked
// afterwards. They draw from a random stream of their own, so that they do not change the rest of a run.
import { newId } from '../../src/domain/ids.ts'
import { LIMIT_WINDOWS, type LimitMetric, type LimitWindow, windowAt } from '../../src/domain/limit.ts'
import { deleteLimit, insertLimit, updateLimit } from '../../src/store/limits.ts'
import type { LimitRow } from '../../src/store/schema.ts'
import type { Store, Writer } from '../../src/store/store.ts'
import { type PlannedBatch, type PlannedLine, SIM_KEYS } from './plans.ts'
import { auditRecords, resultLines } from './result-lines.ts'
import { SIM_MODELS, type SimulatedRun } from './run.ts'
import { type SeededRandom, seededRandom } from './seeded-random.ts'

/** Prompt tokens that the model server counts: as estimated, and far more than estimated. */
const PROMPT_TOKENS = 1
const PROMPT_TOKENS_UNDERESTIMATED = 300
/**
 * A worker reads limits every 300 ms, and stops when its lease expires if it cannot. A transaction that reserved before
 * the change may take effect up to 6 s late.
 */
const EFFECT_MS = 10_000
const DAY_MS = 86_400_000
/** A Sunday, and a Monday. */
const MONTH_ENDS = [Date.UTC(2026, 1, 1), Date.UTC(2026, 5, 1)]
/** Each machine has a server for each model. */
const SERVERS_MAX = 3 * SIM_MODELS.length

interface Cap {
  id: string
  project_id: string
  /** An entity, or '' for the whole project or a key. */
  subject: string
  /** The only key whose batches count; empty: all count. */
  key_id: string
  /** The only model whose lines count; empty: all count. */
  model: string
  metric: LimitMetric
  window: LimitWindow
  amount: number
  /** When it was created or last changed; 0 if that was before any line was sent. */
  since: number
  /** By window, what had been settled when a full database, on which it was changed, had space again. */
  settled?: ReadonlyMap<number, number>
}

export class Caps {
  readonly #random: SeededRandom
  readonly #list: Cap[] = []
  /** Of what was added later, so that it does not change the rest of a run. */
  readonly #more: SeededRandom
  readonly #scopes: SeededRandom
  readonly #keys: SeededRandom
  /** Projects of limits that were deleted, or only notify. */
  readonly #ended = new Set<string>()
  /** Whether lines use far more tokens than estimated; each machine then has at most `inFlightMax` of a model in flight. */
  readonly underestimates: boolean
  readonly inFlightMax = 2
  /** The end of a month that the run crosses, which may be that of a week too; null: it crosses none. */
  readonly monthEnd: number | null

  constructor(seed: number) {
    this.#random = seededRandom(seed + 0x5eed)
    this.#more = seededRandom(seed + 0xde1e7e)
    this.#scopes = seededRandom(seed + 0x5c09e)
    this.#keys = seededRandom(seed + 0x6e75)
    this.underestimates = this.#random.chance(0.3)
    this.monthEnd = this.#random.chance(0.25) ? this.#keys.pick(MONTH_ENDS) : null
  }

  get prompt_tokens(): number {
    return this.underestimates ? PROMPT_TOKENS_UNDERESTIMATED : PROMPT_TOKENS
  }

  /** The cap is a share of what `lines` lines cost at `each`. */
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
    const drawn = random.pick(['cost_usd', 'tokens'] as const)
    const metric = this.#scopes.chance(0.2) ? 'requests' : drawn
    const model = this.#scopes.chance(0.3) ? this.#scopes.pick(SIM_MODELS).id : ''
    const key_id = subject === '' && this.#keys.chance(0.5) ? this.#keys.pick(SIM_KEYS) : ''
    const portion = (subject === '' ? 1 : 0.3) * (model === '' ? 1 : 0.5) * (key_id === '' ? 1 : 0.5)
    const share = lines * random.next() * portion
    const cap: Cap = {
      id: newId('limit', now),
      project_id,
      subject,
      key_id,
      model,
      metric,
      window: random.pick(LIMIT_WINDOWS),
      amount: Math.ceil(share * { cost_usd: each.nanos, tokens: each.tokens, requests: 1 }[metric]),
      since: isRunning ? now : 0,
    }
    this.#list.push(cap)
    const whole = model === '' ? 'project' : 'model'
    const scope: LimitRow['scope'] =
      key_id !== '' ? 'key' : subject === '' ? whole : random.chance(0.5) ? 'entity' : 'entity_type'
    await write((tx) =>
      insertLimit(tx, {
        id: cap.id,
        project_id,
        scope,
        subject: scope === 'entity_type' ? 'user' : subject || key_id,
        model,
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

  /** Raises, lowers or ends one cap; false when there is none. */
  async change(
    write: (change: (tx: Writer) => Promise<void>) => Promise<void>,
    now: number,
  ): Promise<boolean> {
    if (this.#list.length === 0) return false
    const cap = this.#random.pick(this.#list)
    if (this.#more.chance(0.25)) {
      this.#list.splice(this.#list.indexOf(cap), 1)
      this.#ended.add(cap.project_id)
      const isDeleted = this.#more.chance(0.5)
      await write(async (tx) => {
        if (isDeleted) await deleteLimit(tx, cap.project_id, cap.id)
        else await updateLimit(tx, cap.project_id, cap.id, { action: 'notify' })
      })
      return true
    }
    cap.amount = Math.ceil(cap.amount * 2 * this.#random.next())
    cap.since = now
    delete cap.settled
    await write(async (tx) => {
      await updateLimit(tx, cap.project_id, cap.id, { amount: cap.amount })
    })
    return true
  }

  /**
   * To be called when a database has space again that was full from `from` on. What was sent before, and could not be settled,
   * nobody could reserve either.
   */
  async onSpace(store: Store, from: number): Promise<void> {
    for (const cap of this.#list)
      if (cap.since + EFFECT_MS >= from) cap.settled ??= await spentByWindow(store, cap)
  }

  hasAny(project_id: string): boolean {
    return this.#ended.has(project_id) || this.#list.some((cap) => cap.project_id === project_id)
  }

  wants(p: number): boolean {
    return this.#random.chance(p)
  }

  /**
   * For each cap and window: the spend is at most the cap, or the cost of the lines that were sent before the cap
   * took effect, plus the excess of lines in flight over their estimates, and over the prices at which they were reserved,
   * plus what a full database kept from being settled when the cap took effect.
   */
  async violations(run: SimulatedRun): Promise<string[]> {
    const found: string[] = []
    for (const cap of this.#list) {
      const excess = this.underestimates ? SERVERS_MAX * this.inFlightMax * this.#excess(cap.metric) : 0
      const { before, raised } = await billed(run, cap)
      for (const [start, spent] of await spentByWindow(run.store, cap)) {
        const unsettled = cap.settled ? Math.max(0, before - (cap.settled.get(start) ?? 0)) : 0
        const bound = Math.max(cap.amount, before) + unsettled + excess + raised
        if (spent <= bound) continue
        const when = new Date(start).toISOString().slice(0, 10)
        const subject = `${cap.subject || cap.key_id || 'the project'} on ${cap.model || 'any model'}`
        found.push(
          `${subject} has spent ${spent} (${cap.metric}, ${cap.window} of ${when}); its cap is ${cap.amount}, ${before} was sent before it took effect, ${unsettled} of it could not be settled, and lines in flight may exceed it by ${excess}, and by ${raised} at raised prices`,
        )
      }
    }
    return found
  }

  #excess(metric: LimitMetric): number {
    const tokens = PROMPT_TOKENS_UNDERESTIMATED
    return { cost_usd: tokens * 1_000, tokens, requests: 0 }[metric]
  }
}

async function spentByWindow(store: Store, cap: Cap): Promise<Map<number, number>> {
  let query = store.read.selectFrom('usage_days').selectAll().where('project_id', '=', cap.project_id)
  if (cap.subject !== '') query = query.where('entity', '=', cap.subject)
  if (cap.key_id !== '') query = query.where('key_id', '=', cap.key_id)
  if (cap.model !== '') query = query.where('model', '=', cap.model)
  const spent = new Map<number, number>()
  for (const { day, total_tokens: tokens, cost_nanos: cost_usd, requests } of await query.execute()) {
    const { start } = windowAt(cap.window, day * DAY_MS)
    spent.set(start, (spent.get(start) ?? 0) + { cost_usd, tokens, requests }[cap.metric])
  }
  return spent
}

/** What was billed for lines that were last sent before the cap took effect, and, of the others, for raised prices. */
async function billed(run: SimulatedRun, cap: Cap): Promise<{ before: number; raised: number }> {
  const { plans, server } = run
  const at = cap.since === 0 ? 0 : cap.since + EFFECT_MS
  const sums = { before: 0, raised: 0 }
  if (at === 0 && server.raises.size === 0) return sums
  const paidBy = ({ project_id, key_id }: PlannedBatch): boolean =>
    project_id === cap.project_id && (cap.key_id === '' || key_id === cap.key_id)
  for (const planned of plans.batches.filter(paidBy)) {
    const records = await auditRecords(run, planned)
    const counts = (line: PlannedLine | undefined): line is PlannedLine =>
      line !== undefined &&
      (cap.subject === '' || line.entity === cap.subject) &&
      (cap.model === '' || line.model === cap.model)
    if (cap.metric === 'requests') {
      const lines = records.map(({ custom_id }) => plans.line(planned.id, custom_id)).filter(counts)
      sums.before += lines.filter(({ request }) => server.sentAt(request) < at).length
      continue
    }
    // The usage of a result is that of the last answer, the cost that of all.
    const audited = new Map(records.map(({ custom_id, usage }) => [custom_id, usage?.total_tokens]))
    for (const text of await outputsOf(run, planned)) {
      const { custom_id, response } = JSON.parse(text)
      const line = plans.line(planned.id, custom_id)
      if (!counts(line)) continue
      const isBefore = server.sentAt(line.request) < at
      const raise = server.raises.get(line.request) ?? 0
      if (!isBefore && (raise === 0 || cap.metric === 'tokens')) continue
      const tokens = audited.get(custom_id)
      if (tokens === undefined) throw new Error(`${custom_id} of ${planned.id} has no audit record`)
      const amount = cap.metric === 'tokens' ? tokens : Math.round(response.body.usage.cost_usd * 1e9)
      if (isBefore) sums.before += amount
      else sums.raised += Math.ceil(raise * amount)
    }
  }
  return sums
}

async function outputsOf(run: SimulatedRun, { id, read }: PlannedBatch): Promise<string[]> {
  return read ? read.outputs : (await resultLines(run, { id })).outputs
}
