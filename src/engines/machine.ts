// Shares a machine's GPUs and memory between engines. An engine without room waits until another stops: at once if that
// one is idle, otherwise only for at-risk batches, and then the least loaded engine stops first. An engine that has run
// for less than the minimum time is not stopped, so that two engines never alternate faster than either can work.
import { Alarm, type Clock } from '../domain/clock.ts'
import { counted } from '../domain/text.ts'
import type { MachineSpec } from './engine-access.ts'

export interface Tenant {
  readonly name: string
  readonly needs: { gpus: number; memory_bytes: number }
  /** The number of lines that wait for the engine or are in flight there. */
  readonly load: number
  /** Whether batches that may miss their deadline wait for the engine. */
  readonly isUrgent: boolean
  /** Called when the engine has room; `gpus`: the names of its GPUs. */
  onRoom(gpus: readonly string[]): void
  /** Called when another engine needs the room: the engine must stop, and then call `leave`. */
  onEvicted(): void
}

interface Place {
  gpus: readonly string[]
  since: number
  leaving: boolean
}

export class Machine {
  readonly #spec: MachineSpec
  readonly #clock: Clock
  readonly #places = new Map<Tenant, Place>()
  /** The waiting engines in the order in which they asked. */
  readonly #queue: Tenant[] = []
  readonly #alarm: Alarm

  constructor(spec: MachineSpec, clock: Clock) {
    this.#spec = spec
    this.#clock = clock
    this.#alarm = new Alarm(clock, () => this.review())
  }

  /** The reason for which an engine can never have room; null when it can. */
  whyNever({ needs }: Tenant): string | null {
    const { gpus, memory_bytes } = this.#spec
    if (needs.gpus > gpus.length)
      return `it needs ${counted(needs.gpus, 'GPU')}, and engines.gpus is ${gpus.length}`
    if (needs.memory_bytes > memory_bytes)
      return `it needs ${gib(needs.memory_bytes)}, and engines.memory is ${gib(memory_bytes)}`
    return null
  }

  /** Queues an engine for room; calls `onRoom`, now or later, unless it leaves before. */
  enter(tenant: Tenant): void {
    if (this.#places.has(tenant) || this.#queue.includes(tenant)) return
    this.#queue.push(tenant)
    this.review()
  }

  leave(tenant: Tenant): void {
    this.#places.delete(tenant)
    const at = this.#queue.indexOf(tenant)
    if (at !== -1) this.#queue.splice(at, 1)
    this.review()
  }

  /** The names of the engines whose room the tenant waits for. */
  holders(tenant: Tenant): string[] {
    return [...this.#places.keys()].filter((one) => one !== tenant).map(({ name }) => name)
  }

  /** Gives room to waiting engines; to be called when loads have changed. */
  review(): void {
    const now = this.#clock.now()
    const queue = [...this.#queue].sort((a, b) => Number(b.isUrgent) - Number(a.isUrgent))
    for (const tenant of queue) {
      // No other engine goes before one for which engines are stopped.
      if (!this.#place(tenant, now) && this.#makeRoom(tenant, now)) break
    }
  }

  #place(tenant: Tenant, now: number): boolean {
    const free = this.#freeBut([])
    if (!fits(tenant, free)) return false
    this.#queue.splice(this.#queue.indexOf(tenant), 1)
    const gpus = free.gpus.slice(0, tenant.needs.gpus)
    this.#places.set(tenant, { gpus, since: now, leaving: false })
    tenant.onRoom(gpus)
    return true
  }

  /** Stops engines for the tenant; returns whether it will get room. */
  #makeRoom(tenant: Tenant, now: number): boolean {
    const leaving = [...this.#places].flatMap(([one, place]) => (place.leaving ? [one] : []))
    const fitsWithout = (victims: readonly Tenant[]): boolean =>
      fits(tenant, this.#freeBut([...leaving, ...victims]))
    if (fitsWithout([])) return true
    let victims: Tenant[] = []
    let waitMs = Number.POSITIVE_INFINITY
    const candidates = [...this.#places]
      .filter(([one, place]) => !place.leaving && (one.load === 0 || (tenant.isUrgent && !one.isUrgent)))
      .sort(([a], [b]) => a.load - b.load)
    for (const [one, place] of candidates) {
      const leftMs = place.since + this.#spec.run_ms_min - now
      if (leftMs > 0) {
        waitMs = Math.min(waitMs, leftMs)
        continue
      }
      victims.push(one)
      if (!fitsWithout(victims)) continue
      // Engines are kept that need not stop for the tenant to fit.
      for (const victim of victims) {
        const others = victims.filter((one) => one !== victim)
        if (fitsWithout(others)) victims = others
      }
      for (const victim of victims) {
        this.#places.get(victim)!.leaving = true
        victim.onEvicted()
      }
      return true
    }
    if (Number.isFinite(waitMs)) this.#alarm.set(now + waitMs)
    return false
  }

  /** The GPUs and memory that are free once the engines in `gone` have left. */
  #freeBut(gone: readonly Tenant[]): { gpus: string[]; memory_bytes: number } {
    const staying = [...this.#places].filter(([one]) => !gone.includes(one))
    const used = new Set(staying.flatMap(([, { gpus }]) => gpus))
    const memory_bytes = staying.reduce(
      (left, [{ needs }]) => left - needs.memory_bytes,
      this.#spec.memory_bytes,
    )
    return { gpus: this.#spec.gpus.filter((gpu) => !used.has(gpu)), memory_bytes }
  }

  close(): void {
    this.#alarm.set(Number.POSITIVE_INFINITY)
  }
}

function fits({ needs }: Tenant, free: { gpus: readonly string[]; memory_bytes: number }): boolean {
  return needs.gpus <= free.gpus.length && needs.memory_bytes <= free.memory_bytes
}

function gib(bytes: number): string {
  return `${(bytes / 2 ** 30).toFixed(1)} GiB`
}
