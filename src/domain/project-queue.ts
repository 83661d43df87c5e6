// Runs expensive operations round robin over projects, a bounded number at once and a smaller number of each project:
// another project waits for at most one operation to end, however many are queued.

export interface QueueBounds {
  /** Concurrent operations. Half of them are reserved for projects without a running operation. */
  atOnce: number
  perProject: number
  /** Waiting operations of a project; absent: any number. */
  waitingMax?: number
}

/** Thrown when `waitingMax` operations of the project wait already. */
export class QueueFull extends Error {}

interface Project {
  running: number
  waiting: Set<() => void>
}

export class ProjectQueue {
  readonly #bounds: QueueBounds
  /** The projects with running or waiting operations; the one whose operation began or ended last is at the end. */
  readonly #projects = new Map<string, Project>()
  #running = 0

  constructor(bounds: QueueBounds) {
    this.#bounds = bounds
  }

  /** Runs `act` when its project's turn comes. Throws QueueFull, and the reason of `signal` if it aborts before. */
  async run<T>(project_id: string, act: () => Promise<T>, signal?: AbortSignal): Promise<T> {
    const leave = await this.enter(project_id, signal)
    try {
      return await act()
    } finally {
      leave()
    }
  }

  /** Waits for a slot, which the returned function releases. Throws as `run`. */
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
    // The signal may abort between the turn and the operation.
    if (signal?.aborted) leave()
    signal?.throwIfAborted()
    return leave
  }

  async #wait(project: Project, signal: AbortSignal | undefined): Promise<void> {
    if (project.waiting.size >= (this.#bounds.waitingMax ?? Number.POSITIVE_INFINITY)) throw new QueueFull()
    const { promise, resolve, reject } = Promise.withResolvers<void>()
    // Requests that have arrived meanwhile are handled first.
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
 * Slots of one process that holders, mostly projects, share. A holder may take more only while it has fewer than are
 * free (the dynamic threshold by which switches share their buffers): one holder gets at most half, the next one half
 * of the rest, so that some slots stay free for others.
 */
export class SharedSlots {
  readonly #max: number
  readonly #byHolder = new Map<string, number>()
  #used = 0

  constructor(max: number) {
    this.#max = max
  }

  /** The used slots of all holders. */
  get usedByAll(): number {
    return this.#used
  }

  used(holder: string): number {
    return this.#byHolder.get(holder) ?? 0
  }

  /** Takes `slots`, which the returned function releases; null if the holder's share is too small. */
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

/** A semaphore: as many operations run as there are slots; the others wait in order of arrival. */
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
 * Yields `work(item)` for each item in order; up to `ahead` items beyond the requested one are started. The first
 * failure, of an item or of `items` itself, ends it.
 */
export async function* mapAhead<T, R>(
  items: AsyncIterable<T> | Iterable<T>,
  ahead: number,
  work: (item: T) => Promise<R>,
): AsyncGenerator<R, void, undefined> {
  const begun: Promise<R>[] = []
  for await (const item of items) {
    const result = work(item)
    // The promise is awaited below, or never when an earlier piece fails or the reader stops.
    result.catch(() => {})
    begun.push(result)
    if (begun.length > ahead) yield await begun.shift()!
  }
  for (const result of begun) yield await result
}
