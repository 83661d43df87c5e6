// Reserves for chunks. Requests that arrive while a transaction runs are combined in the next one.
//
// A transaction that reserves can take effect after the worker has given up on it: its COMMIT hung, or the answer was
// lost. Reservations are changed by differences, so such a transaction and its retry may not both take effect. Each
// attempt therefore has a number, and names the last one that is known to have taken effect (`fenceReservation`); an
// attempt that is rejected learns which earlier one took effect, and continues from its outcome.

import { type Reservation, type ReserveLine, reserve } from '../../../ledger/reserve.ts'
import { limitCrossed, recordEvent } from '../../../notify/record-event.ts'
import { fenceReservation } from '../../../store/chunks.ts'
import { type Ports, StatementRejected } from '../../../store/store.ts'
import type { Run } from '../../run.ts'
import type { ReservedFunds } from './reserved-funds.ts'

interface Pending {
  run: Run
  lines: readonly ReserveLine[]
  resolve: (reservation: Reservation | null) => void
  reject: (error: unknown) => void
}

interface ReservationQueueOptions extends Pick<Ports, 'store' | 'clock'> {
  funds: Pick<ReservedFunds, 'setReserved'>
}

export class ReservationQueue {
  readonly #options: ReservationQueueOptions
  #queue: Pending[] = []
  #reserving = false
  readonly #attempts = new WeakMap<Run, Attempts>()

  constructor(options: ReservationQueueOptions) {
    this.#options = options
  }

  /** Reserves for lines of a run; null when the lease is lost. */
  reserve(run: Run, lines: readonly ReserveLine[]): Promise<Reservation | null> {
    run.results.hasReservations = true
    return new Promise((resolve, reject) => {
      this.#queue.push({ run, lines, resolve, reject })
      if (!this.#reserving) void this.#reserveQueued()
    })
  }

  async #reserveQueued(): Promise<void> {
    this.#reserving = true
    while (this.#queue.length > 0) {
      const group = this.#queue
      this.#queue = []
      try {
        await this.#reserveGroup(group)
      } catch (error) {
        // One rejected statement must not fail the other requests.
        if (error instanceof StatementRejected && group.length > 1)
          for (const pending of group) await this.#reserveGroup([pending]).catch(pending.reject)
        else for (const pending of group) pending.reject(error)
      }
    }
    this.#reserving = false
  }

  /** Reserves for lines. An attempt after another effective one is queued again, with the outcome of that one. */
  async #reserveGroup(group: readonly Pending[]): Promise<void> {
    const { store, clock, funds } = this.#options
    const attempts = group.map(({ run }) => {
      const of = this.#attemptsOf(run)
      return { last: of.last, next: ++of.made }
    })
    const answers = await store.write(async (tx) => {
      const now = clock.now()
      const answers: { effective: number | null; reservation: Reservation | null }[] = []
      for (const [i, { run, lines }] of group.entries()) {
        const attempt = attempts[i]!
        const effective = await fenceReservation(tx, run.claim, attempt)
        const reservation =
          effective === attempt.next ? await reserve(tx, { claim: run.claim, lines }, now) : null
        if (reservation) this.#attemptsOf(run).unclear.set(attempt.next, outcomeOf(lines, reservation))
        for (const crossing of reservation?.crossings ?? [])
          await recordEvent(tx, limitCrossed(crossing), now)
        answers.push({ effective, reservation })
      }
      return answers
    })
    for (const [i, pending] of group.entries()) {
      const { effective, reservation } = answers[i]!
      const { run } = pending
      const outcome = effective === null ? undefined : confirm(this.#attemptsOf(run), effective)
      if (reservation || !outcome) {
        pending.resolve(reservation)
        continue
      }
      for (const [position, isReserved] of outcome) funds.setReserved(run, position, isReserved)
      const lines = pending.lines.map((line) => ({ ...line, isReserved: run.isReserved(line.position) }))
      this.#queue.push({ ...pending, lines })
    }
  }

  #attemptsOf(run: Run): Attempts {
    const { reservation_seq: last } = run.claim
    const attempts = this.#attempts.get(run) ?? { last, made: last, unclear: new Map() }
    this.#attempts.set(run, attempts)
    return attempts
  }
}

/** The outcome of an attempt that took effect: whether lines are reserved, by position. */
type AttemptOutcome = ReadonlyMap<number, boolean>

interface Attempts {
  /** The number of the last attempt that is known to have taken effect, and the number of the last attempt. */
  last: number
  made: number
  /** The outcomes of attempts, by number, that are not known to have taken effect. */
  unclear: Map<number, AttemptOutcome>
}

/** Notes that an attempt took effect; returns its outcome, unless another lease made it. */
function confirm(attempts: Attempts, effective: number): AttemptOutcome | undefined {
  const outcome = attempts.unclear.get(effective)
  attempts.last = effective
  attempts.unclear.clear()
  return outcome
}

function outcomeOf(lines: readonly ReserveLine[], { allowed, isReserved }: Reservation): AttemptOutcome {
  const reserved = new Set(isReserved ? allowed : [])
  return new Map(lines.map(({ position }) => [position, reserved.has(position)]))
}
