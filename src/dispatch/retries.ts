// Lines that wait for their next attempt, by the time when they may be sent again: a binary heap and one alarm. An entry
// counts only while its line is still waiting for that time.
import type { Clock } from '../domain/clock.ts'
import type { Run } from './run.ts'

interface Retry {
  run: Run
  position: number
  /** Unix ms. */
  due: number
}

export class Retries {
  readonly #clock: Clock
  readonly #onDue: (run: Run, position: number) => void
  readonly #heap: Retry[] = []
  #cancelAlarm: (() => void) | null = null
  #alarmAt = Number.POSITIVE_INFINITY

  constructor(clock: Clock, onDue: (run: Run, position: number) => void) {
    this.#clock = clock
    this.#onDue = onDue
  }

  add(run: Run, position: number, due: number): void {
    const heap = this.#heap
    let at = heap.length
    while (at > 0 && heap[(at - 1) >> 1]!.due > due) {
      heap[at] = heap[(at - 1) >> 1]!
      at = (at - 1) >> 1
    }
    heap[at] = { run, position, due }
    this.#setAlarm()
  }

  /** Nothing is due any more. */
  close(): void {
    this.#cancelAlarm?.()
    this.#heap.length = 0
  }

  #setAlarm(): void {
    const at = this.#heap[0]?.due ?? Number.POSITIVE_INFINITY
    if (at === this.#alarmAt) return
    this.#cancelAlarm?.()
    this.#cancelAlarm = null
    this.#alarmAt = at
    if (at === Number.POSITIVE_INFINITY) return
    this.#cancelAlarm = this.#clock.after(at - this.#clock.now(), () => {
      this.#alarmAt = Number.POSITIVE_INFINITY
      this.#cancelAlarm = null
      // What the alarm was set for is due, also if the clock was set back since.
      const until = Math.max(at, this.#clock.now())
      while (this.#heap.length > 0 && this.#heap[0]!.due <= until) {
        const { run, position } = this.#takeFirst()
        if (!run.isRetrying(position) || run.dueOf(position) > until) continue
        run.setDue(position, 0)
        this.#onDue(run, position)
      }
      this.#setAlarm()
    })
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
