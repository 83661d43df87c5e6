// Keeps lines that missed an answer until their next attempt is due, by that time: in a binary heap with one alarm. An
// entry counts only while its line is still waiting for that time.
import { Alarm, type Clock } from '../../domain/clock.ts'
import { RETRYING } from '../line-state.ts'
import type { Run } from '../run.ts'

/** A line that may go on. */
export interface Freed {
  kind: 'freed'
  run: Run
  position: number
  cause: string
}

interface Retry {
  run: Run
  position: number
  /** Unix ms. */
  due: number
}

export class Retries {
  readonly state = RETRYING
  readonly #turn: { push(freed: Freed): void }
  readonly #heap: Retry[] = []
  readonly #alarm: Alarm

  constructor(clock: Clock, turn: { push(freed: Freed): void }) {
    this.#turn = turn
    // What the alarm was set for is due, also if the clock was set back since.
    this.#alarm = new Alarm(clock, (at) => this.#endWaits(Math.max(at, clock.now())))
  }

  until(run: Run, position: number, now: number): number | null {
    const due = run.dueOf(position)
    return due > now ? due : null
  }

  keep(run: Run, position: number): void {
    const due = run.dueOf(position)
    const heap = this.#heap
    let at = heap.length
    while (at > 0 && heap[(at - 1) >> 1]!.due > due) {
      heap[at] = heap[(at - 1) >> 1]!
      at = (at - 1) >> 1
    }
    heap[at] = { run, position, due }
    this.#setAlarm()
  }

  close(): void {
    this.#heap.length = 0
    this.#setAlarm()
  }

  #setAlarm(): void {
    this.#alarm.set(this.#heap[0]?.due ?? Number.POSITIVE_INFINITY)
  }

  #endWaits(until: number): void {
    while (this.#heap.length > 0 && this.#heap[0]!.due <= until) {
      const { run, position } = this.#takeFirst()
      if (!run.isRetrying(position) || run.dueOf(position) > until) continue
      run.setDue(position, 0)
      this.#turn.push({ kind: 'freed', run, position, cause: 'it is due' })
    }
    this.#setAlarm()
  }

  #takeFirst(): Retry {
    const heap = this.#heap
    const first = heap[0]!
    const last = heap.pop()!
    if (heap.length === 0) return first
    let at = 0
    for (let child = 1; child < heap.length; child = 2 * at + 1) {
      if (child + 1 < heap.length && heap[child + 1]!.due < heap[child]!.due) child++
      if (heap[child]!.due >= last.due) break
      heap[at] = heap[child]!
      at = child
    }
    heap[at] = last
    return first
  }
}
