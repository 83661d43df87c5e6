// Runs the expensive operations of one project one after the other, so another project waits for one of them at most.

export class ProjectQueue {
  readonly #last = new Map<string, Promise<void>>()

  /** Runs `act` after the earlier operations of the same project, whether they succeeded or failed. */
  async run<T>(project_id: string, act: () => Promise<T>): Promise<T> {
    const before = this.#last.get(project_id)
    const { promise: ended, resolve } = Promise.withResolvers<void>()
    this.#last.set(project_id, ended)
    try {
      if (before) {
        await before
        // Requests that have arrived meanwhile are served first.
        await new Promise((resolve) => setImmediate(resolve))
      }
      return await act()
    } finally {
      resolve()
      if (this.#last.get(project_id) === ended) this.#last.delete(project_id)
    }
  }
}
