// How often each thing happened: faults, and what the checks looked at. A fault that never happens tests nothing.

export class Tally {
  readonly #counts = new Map<string, number>()

  readonly count = (what: string, by = 1): void => {
    this.#counts.set(what, (this.#counts.get(what) ?? 0) + by)
  }

  add(other: Tally): void {
    for (const [what, count] of other.#counts) this.count(what, count)
  }

  of(what: string): number {
    return this.#counts.get(what) ?? 0
  }

  entries(): [string, number][] {
    return [...this.#counts].sort(([a], [b]) => (a < b ? -1 : 1))
  }

  lines(): string[] {
    return this.entries().map(([what, count]) => `${what}: ${count}`)
  }
}
