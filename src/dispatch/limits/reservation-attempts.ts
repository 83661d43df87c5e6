// A transaction that reserves can take effect after the worker has given up on it: its COMMIT hung, or the answer was
// lost. Reservations are changed by differences, so such a transaction and its retry may not both take effect. Each
// attempt therefore has a number, and names the last one that is known to have taken effect (`fenceReservation`); an
// attempt that is rejected learns which earlier one took effect, and continues from its outcome.

/** By position: whether the line is reserved for once the attempt has taken effect. */
export type AttemptOutcome = ReadonlyMap<number, boolean>

export class ReservationAttempts {
  #last: number
  #next: number
  readonly #unclear = new Map<number, AttemptOutcome>()

  /** `last`: the number on the chunk's row when the chunk was claimed. */
  constructor(last: number) {
    this.#last = last
    this.#next = last
  }

  begin(): { last: number; next: number } {
    this.#next += 1
    return { last: this.#last, next: this.#next }
  }

  /** To be called before the attempt is committed. */
  expect(attempt: number, outcome: AttemptOutcome): void {
    this.#unclear.set(attempt, outcome)
  }

  /** This attempt has taken effect. Undefined if it is none of this lease's. */
  confirm(attempt: number): AttemptOutcome | undefined {
    const outcome = this.#unclear.get(attempt)
    this.#last = attempt
    this.#unclear.clear()
    return outcome
  }
}
