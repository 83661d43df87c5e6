// Heavy work of one project go one after the other, so whoever else calls waits for one of them at most
// and not for all that a project has sent at once.

export class ProjectQueue {
  readonly #last = new Map<string, Promise<void>>()

  /** Runs `act` when those of the same project that came before have ended, however they ended. */
  async run<T>(project_id: string, act: () => Promise<T>): Promise<T> {
    const before = this.#last.get(project_id)
    const { promise: ended, resolve } = Promise.withResolvers<void>()
    this.#last.set(project_id, ended)
    try {
      if (before) {
        await before
        // Whatever has arrived meanwhile comes first.
        await new Promise((resolve) => setImmediate(resolve))
      }
      return await act()
    } finally {
      resolve()
      if (this.#last.get(project_id) === ended) this.#last.delete(project_id)
    }
  }
}
