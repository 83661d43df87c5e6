// Slots of one process that its holders, projects mostly, share. A holder may take more only while it has fewer than are
// free (the dynamic threshold by which switches share their buffers): one holder gets at most half, the next one half of
// what is left, so that there are slots for others however many some of them take.

export class SharedSlots {
  readonly #max: number
  readonly #byHolder = new Map<string, number>()
  #used = 0

  constructor(max: number) {
    this.#max = max
  }

  used(holder: string): number {
    return this.#byHolder.get(holder) ?? 0
  }

  /** Takes `slots` until the function that it returns is called; null where they are more than the holder's share. */
  take(holder: string, slots = 1): (() => void) | null {
    if (this.used(holder) + slots > this.#max - this.#used) return null
    this.#add(holder, slots)
    let taken = true
    return () => {
      if (taken) this.#add(holder, -slots)
      taken = false
    }
  }

  #add(holder: string, slots: number): void {
    this.#used += slots
    const used = this.used(holder) + slots
    if (used > 0) this.#byHolder.set(holder, used)
    else this.#byHolder.delete(holder)
  }
}
