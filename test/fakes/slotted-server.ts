// A model server with slots before which several workers find their level, all on a clock that is made of events:
// every worker always has lines, and fills what it may have in flight at once. Nothing is real but the limits.
import type { ConcurrencyLimit, Sent } from '../../src/servers/concurrency.ts'

export interface SlottedServer {
  limits: readonly ConcurrencyLimit[]
  /** When each begins to send, ms; all at once unless told. */
  starts?: readonly number[]
  slots: (now: number) => number
  /** What the next line takes of a slot, ms. */
  latency_ms: () => number
  /** A request without a slot waits instead of being throttled. */
  queues?: boolean
  /** The share of requests that are throttled though there are slots. */
  strays?: number
  /** What becomes of a request that arrives now, if it is not served; it ends after a millisecond. */
  outage?: (now: number) => 'failed' | 'throttled' | null
  /** From when to when (ms) nothing is answered: what would be is, at the end. */
  stall?: readonly [from: number, to: number]
  /** Called every 10 ms. */
  watch?: (now: number, busy: number) => void
}

export interface Served {
  answered: number[]
  throttled: number[]
  /** Slot-milliseconds that stood empty. */
  lostMs: number
}

const TRANSPORT_MS = 1
/** How long a worker that was throttled with nothing else in flight sends nothing. */
const PAUSE_MS = 250
const WATCH_MS = 10

/** A call that is about to be sent, Unix ms. */
export function sentAt(now: number): Sent {
  return { sentAt: now, inFlight: 0, cohort: null }
}

/** In [0, 1), the same in every run. */
export function seeded(seed: number): () => number {
  let state = seed
  return () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0
    return state / 2 ** 32
  }
}

/** Runs it for so many ms. */
export function serveSlots(server: SlottedServer, until: number): Served {
  const { limits, slots, latency_ms, queues = false, strays = 0, outage, stall = [0, 0], watch } = server
  const agenda = new Agenda()
  const random = seeded(5)
  const pausedUntil = limits.map((_, i) => server.starts?.[i] ?? 0)
  const served: Served = { answered: limits.map(() => 0), throttled: limits.map(() => 0), lostMs: 0 }
  const queue: (() => void)[] = []
  let now = 0
  let busy = 0
  let counted = 0

  const count = (): void => {
    served.lostMs += Math.max(0, slots(counted) - busy) * (now - counted)
    counted = now
  }
  const fill = (worker: number): void => {
    if (now < pausedUntil[worker]!) return
    const limit = limits[worker]!
    while (limit.limit > limit.inFlight) {
      const sent = sentAt(now)
      limit.acquire(sent)
      agenda.add(now + TRANSPORT_MS, () => arrive(worker, sent))
    }
  }
  const arrive = (worker: number, sent: Sent): void => {
    const fault = outage?.(now) ?? (strays > 0 && random() < strays ? 'throttled' : null)
    if (fault !== null) agenda.add(now + TRANSPORT_MS, () => refuse(worker, sent, fault))
    else if (busy < slots(now)) work(worker, sent)
    else if (queues) queue.push(() => work(worker, sent))
    else agenda.add(now + TRANSPORT_MS, () => refuse(worker, sent))
  }
  const work = (worker: number, sent: Sent): void => {
    count()
    busy++
    const done = now + latency_ms()
    agenda.add(done >= stall[0] && done < stall[1] ? stall[1] : done, () => {
      count()
      busy--
      served.answered[worker]!++
      agenda.add(now + TRANSPORT_MS, () => {
        limits[worker]!.onAnswered(sent, now)
        // As in a worker, which sends once for all answers of a turn.
        agenda.add(now, () => fill(worker))
      })
      queue.shift()?.()
    })
  }
  const refuse = (worker: number, sent: Sent, how: 'failed' | 'throttled' = 'throttled'): void => {
    const limit = limits[worker]!
    if (how === 'throttled') {
      served.throttled[worker]!++
      limit.onThrottled(sent)
    } else limit.onFailed(sent, now)
    if (limit.inFlight === 0) pausedUntil[worker] = now + PAUSE_MS
    agenda.add(Math.max(now, pausedUntil[worker]!), () => fill(worker))
  }

  for (const [worker, start] of pausedUntil.entries()) agenda.add(start, () => fill(worker))
  for (let at = 0; watch && at < until; at += WATCH_MS) agenda.add(at, () => watch(now, busy))
  for (let next = agenda.next(); next && next.at <= until; next = agenda.next()) {
    now = next.at
    next.run()
  }
  now = until
  count()
  return served
}

interface Item {
  at: number
  run: () => void
}

/** What is due first comes first; among equals, what was added first. */
class Agenda {
  /** A binary heap. */
  readonly #items: (Item & { nth: number })[] = []
  #added = 0

  add(at: number, run: () => void): void {
    const items = this.#items
    items.push({ at, run, nth: this.#added++ })
    for (let i = items.length - 1; i > 0 && this.#isBefore(i, (i - 1) >> 1); i = (i - 1) >> 1)
      this.#swap(i, (i - 1) >> 1)
  }

  next(): Item | undefined {
    const items = this.#items
    this.#swap(0, items.length - 1)
    const first = items.pop()
    for (let i = 0; ; ) {
      let least = i
      for (const child of [2 * i + 1, 2 * i + 2])
        if (child < items.length && this.#isBefore(child, least)) least = child
      if (least === i) return first
      this.#swap(i, least)
      i = least
    }
  }

  #isBefore(a: number, b: number): boolean {
    const [left, right] = [this.#items[a]!, this.#items[b]!]
    return left.at < right.at || (left.at === right.at && left.nth < right.nth)
  }

  #swap(a: number, b: number): void {
    if (a === b || b < 0) return
    const item = this.#items[a]!
    this.#items[a] = this.#items[b]!
    this.#items[b] = item
  }
}
