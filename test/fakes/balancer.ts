// What a load balancer does with APIs that come and go: it asks each for /readyz, again and again, and sends a
// call only to one that said yes the last time. It never tries a call twice, so a call that is lost is lost.
import { setTimeout } from 'node:timers/promises'

/** Between two questions to one API. */
const LOOK_MS = 40

export class Balancer implements AsyncDisposable {
  readonly #ready = new Map<string, boolean>()
  readonly #looking = new Set<Promise<void>>()
  #waiting: (() => void)[] = []
  #turn = 0
  #closed = false

  /** Looks after this API until it is gone. */
  add(url: string): void {
    this.#ready.set(url, false)
    const looking = this.#look(url).finally(() => this.#looking.delete(looking))
    this.#looking.add(looking)
  }

  remove(url: string): void {
    this.#ready.delete(url)
  }

  /** The next API that is ready; waits while there is none. */
  async pick(): Promise<string> {
    for (;;) {
      const ready = [...this.#ready].filter(([, isReady]) => isReady).map(([url]) => url)
      const url = ready[this.#turn++ % Math.max(1, ready.length)]
      if (url !== undefined) return url
      await new Promise<void>((resolve) => this.#waiting.push(resolve))
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#closed = true
    await Promise.all(this.#looking)
  }

  async #look(url: string): Promise<void> {
    while (!this.#closed && this.#ready.has(url)) {
      const isReady = await fetch(`${url}/readyz`).then(
        async (response) => {
          await response.arrayBuffer()
          return response.ok
        },
        () => false,
      )
      if (this.#ready.has(url)) this.#ready.set(url, isReady)
      if (isReady) for (const resolve of this.#waiting.splice(0)) resolve()
      await setTimeout(LOOK_MS)
    }
  }
}
