// Runs expensive operations, a bounded number at once and a smaller number of each project, round robin over projects:
// another project waits for at most one operation to end, however many are queued.

export interface QueueBounds {
  /** Operations that run at once. Half of these places are kept for projects of which none runs. */
  atOnce: number
  perProject: number
  /** Operations of a project that may wait; without it any number. */
  waitingMax?: number
}

/** The error when as many operations of the project wait as may. */
export class QueueFull extends Error {}

interface Project {
  running: number
  waiting: Set<() => void>
}

export class ProjectQueue {
  readonly #bounds: QueueBounds
  /** The projects with operations that run or wait, the one whose operation began or ended last at the end. */
  readonly #projects = new Map<string, Project>()
  #running = 0

  constructor(bounds: QueueBounds) {
    this.#bounds = bounds
  }

  /** Runs `act` in its turn. Throws QueueFull, and the reason of `signal` if it aborts while `act` waits. */
  async run<T>(project_id: string, act: () => Promise<T>, signal?: AbortSignal): Promise<T> {
    const leave = await this.enter(project_id, signal)
    try {
      return await act()
    } finally {
      leave()
    }
  }

  /** Takes a place, which the returned function gives up. Throws as `run`. */
  async enter(project_id: string, signal?: AbortSignal): Promise<() => void> {
    signal?.throwIfAborted()
    let project = this.#projects.get(project_id)
    if (!project) {
      project = { running: 0, waiting: new Set() }
      this.#projects.set(project_id, project)
    }
    if (project.waiting.size === 0 && this.#hasPlace(project)) this.#start(project_id, project)
    else await this.#wait(project, signal)
    let isHeld = true
    const leave = (): void => {
      if (!isHeld) return
      isHeld = false
      this.#running--
      project.running--
      this.#toEnd(project_id, project)
      this.#next()
    }
    // It may abort between the turn and the operation that has it.
    if (signal?.aborted) leave()
    signal?.throwIfAborted()
    return leave
  }

  async #wait(project: Project, signal: AbortSignal | undefined): Promise<void> {
    if (project.waiting.size >= (this.#bounds.waitingMax ?? Number.POSITIVE_INFINITY)) throw new QueueFull()
    const { promise, resolve, reject } = Promise.withResolvers<void>()
    // Requests that have arrived meanwhile are served first.
    const begin = (): void => void setImmediate(resolve)
    const stop = (): void => {
      if (!project.waiting.delete(begin)) return
      reject(signal?.reason)
      this.#next()
    }
    project.waiting.add(begin)
    signal?.addEventListener('abort', stop, { once: true })
    try {
      await promise
    } finally {
      signal?.removeEventListener('abort', stop)
    }
  }

  #hasPlace({ running }: Project): boolean {
    const { atOnce, perProject } = this.#bounds
    return running < perProject && this.#running < (running === 0 ? atOnce : Math.ceil(atOnce / 2))
  }

  #start(id: string, project: Project): void {
    this.#running++
    project.running++
    this.#toEnd(id, project)
  }

  #toEnd(id: string, project: Project): void {
    this.#projects.delete(id)
    this.#projects.set(id, project)
  }

  #next(): void {
    for (const [id, project] of [...this.#projects]) {
      const [first] = project.waiting
      if (first && this.#hasPlace(project)) {
        project.waiting.delete(first)
        this.#start(id, project)
        first()
      } else if (!first && project.running === 0) this.#projects.delete(id)
    }
  }
}

/**
 * Slots of one process that its holders, projects mostly, share. A holder may take more only while it has fewer than are
 * free (the dynamic threshold by which switches share their buffers): one holder gets at most half, the next one half of
 * what is left, so that there are slots for others however many some of them take.
 */
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

/** Lets as many operations run at once as there are slots; the others wait in the order in which they came. */
export class Slots {
  #free: number
  readonly #waiting: (() => void)[] = []

  constructor(max: number) {
    this.#free = max
  }

  async run<T>(act: () => Promise<T>): Promise<T> {
    await this.take()
    try {
      return await act()
    } finally {
      this.release()
    }
  }

  async take(): Promise<void> {
    if (this.#free > 0) this.#free--
    else await new Promise<void>((resolve) => this.#waiting.push(resolve))
  }

  release(): void {
    const next = this.#waiting.shift()
    if (next) next()
    else this.#free++
  }
}

// Maps items in order, several at a time: the thread pool compresses the next frames while one is written, and at most
// `ahead` results wait for a slow reader.

/**
 * `work(item)` for every item, in the items' order; up to `ahead` items beyond the one asked for are begun.
 * The first failure, of an item or of `items` itself, ends it.
 */
export async function* mapAhead<T, R>(
  items: AsyncIterable<T> | Iterable<T>,
  ahead: number,
  work: (item: T) => Promise<R>,
): AsyncGenerator<R, void, undefined> {
  const begun: Promise<R>[] = []
  for await (const item of items) {
    const result = work(item)
    // It is awaited below, or never when an earlier piece fails or the reader leaves.
    result.catch(() => {})
    begun.push(result)
    if (begun.length > ahead) yield await begun.shift()!
  }
  for (const result of begun) yield await result
}
