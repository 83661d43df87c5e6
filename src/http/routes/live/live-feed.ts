// Follows the batches of the projects that somebody watches. A project is read once a second however many watch it, and
// not at all while nobody does. Each watcher gets what has changed since it was told last.

import { isTerminal } from '../../../domain/batch.ts'
import type { Clock } from '../../../domain/clock.ts'
import { newId } from '../../../domain/ids.ts'
import type { Log } from '../../../domain/log.ts'
import type { Model } from '../../../domain/model.ts'
import { readBatchProgress } from '../../../progress/read-batch-progress.ts'
import { listLaterBatches, listOpenBatches } from '../../../store/live-batches.ts'
import type { BatchRow } from '../../../store/schema.ts'
import type { Store } from '../../../store/store.ts'
import type { BatchObject } from '../../../wire/batch.ts'
import { showBatch } from '../batches/show-batch.ts'

const TICK_MS = 1000
/** The newest of more unfinished batches. */
const BATCHES_MAX = 100

/** Called after each look, also when nothing has changed. */
type Watcher = (changed: readonly BatchObject[]) => void

interface Project {
  watchers: Set<Watcher>
  /** What was told of unfinished batches last, by ID. Watchers that come during a look add to it. */
  readonly told: Map<string, string>
  /** Batches with greater IDs have not been told of. */
  newest: string
  cancel: () => void
}

export interface LiveFeedOptions {
  store: Pick<Store, 'read' | 'claimSql'>
  clock: Clock
  region: string
  models: ReadonlyMap<string, Model>
  log: Pick<Log, 'warn'>
}

export class LiveFeed {
  readonly #options: LiveFeedOptions
  readonly #projects = new Map<string, Project>()

  constructor(options: LiveFeedOptions) {
    this.#options = options
  }

  /** The unfinished batches, newest first. */
  async snapshot(project_id: string): Promise<BatchObject[]> {
    return await this.#show(await listOpenBatches(this.#options.store.read, project_id, BATCHES_MAX))
  }

  /**
   * Calls `watcher` about once a second with what differs from the snapshot `seen`, until the function that is returned
   * is called.
   */
  watch(project_id: string, seen: readonly BatchObject[], watcher: Watcher): () => void {
    const project = this.#projects.get(project_id) ?? this.#open(project_id)
    project.watchers.add(watcher)
    // So that one that ends before the next look is told of, too.
    for (const batch of seen) project.told.set(batch.id, JSON.stringify(batch))
    return () => {
      project.watchers.delete(watcher)
      if (project.watchers.size > 0) return
      project.cancel()
      if (this.#projects.get(project_id) === project) this.#projects.delete(project_id)
    }
  }

  #open(project_id: string): Project {
    // IDs begin with their time: batches that are made from now on have greater ones.
    const newest = newId('batch', this.#options.clock.now())
    const project: Project = { watchers: new Set(), told: new Map(), newest, cancel: () => {} }
    this.#projects.set(project_id, project)
    this.#schedule(project_id, project)
    return project
  }

  #schedule(project_id: string, project: Project): void {
    if (this.#projects.get(project_id) !== project) return
    project.cancel = this.#options.clock.after(TICK_MS, () => void this.#tick(project_id, project))
  }

  async #tick(project_id: string, project: Project): Promise<void> {
    try {
      const changed = await this.#changed(project_id, project)
      for (const watcher of project.watchers) watcher(changed)
    } catch (err) {
      this.#options.log.warn({ err, project: project_id }, 'batches could not be read for live updates')
    }
    this.#schedule(project_id, project)
  }

  async #changed(project_id: string, project: Project): Promise<BatchObject[]> {
    const { read } = this.#options.store
    const open = await listOpenBatches(read, project_id, BATCHES_MAX)
    const isOpen = new Set(open.map(({ id }) => id))
    const ids = [...project.told.keys()].filter((id) => !isOpen.has(id))
    const later = await listLaterBatches(read, project_id, { id: project.newest, ids, limit: BATCHES_MAX })
    const all = [...open, ...later.filter(({ id }) => !isOpen.has(id))]
    const shown = await this.#show(all)
    const changed: BatchObject[] = []
    for (const id of ids) project.told.delete(id)
    for (const batch of shown) {
      const text = JSON.stringify(batch)
      if (project.told.get(batch.id) !== text) changed.push(batch)
      if (isTerminal(batch.status)) project.told.delete(batch.id)
      else project.told.set(batch.id, text)
      if (batch.id > project.newest) project.newest = batch.id
    }
    return changed
  }

  async #show(rows: readonly BatchRow[]): Promise<BatchObject[]> {
    const { store, clock, region, models } = this.#options
    const progress = await readBatchProgress(store, rows, clock.now(), models)
    return rows.map((row) => showBatch(row, { region, compat: null }, progress.get(row.id)))
  }
}
