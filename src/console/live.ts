// Follows what changes: by one stream of events per tab, or by polling every few seconds where streams do not work. It has
// the batches themselves and names what else is worth reading again; resources that are about it are then read.
import { useEffect, useRef } from 'preact/hooks'
import { isTerminal } from '../domain/batch.ts'
import type { BatchObject } from '../wire/batch.ts'
import type { LiveUpdate } from '../wire/status.ts'
import { get, serviceUrl } from './api.ts'
import { every, later, now } from './browser-clock.ts'
import { Cell, useCell } from './cell.ts'

const PATH = '/v1/live'
const POLL_MS = 5_000
/** The interval in ms at which constantly changing data is read again. */
const SETTLE_MS = 4_000
/** The interval in ms of reading everything, for changes without a call or a worker, such as a new day. */
const ALL_MS = 120_000

type LiveState = 'connecting' | 'live' | 'polling'

const batches = new Cell<ReadonlyMap<string, BatchObject>>(new Map())
const state = new Cell<LiveState>('connecting')
/** The IDs of the unfinished batches in the last snapshot. */
const unfinished = new Cell<ReadonlySet<string> | null>(null)

/** The last batch that ended while a page showed it. */
export const justEnded = new Cell<BatchObject | null>(null)

/** The number of changes of each name, and under ALL of everything. */
const counts = new Cell<ReadonlyMap<string, number>>(new Map())
const ALL = '*'
const versions = new Map<string, string>()
const changed = new Set<string>()
let cancelPublish: (() => void) | null = null

/** Unix ms of the last answer while changes are polled; null while they are pushed. */
export const staleSince = new Cell<number | null>(null)

function markChanged(names: Iterable<string>): void {
  for (const name of names) changed.add(name)
  if (changed.size > 0 && cancelPublish === null) cancelPublish = later(0, publish)
}

/** Publishes changes at once, and further ones only after some seconds. */
function publish(): void {
  if (changed.size > 0)
    counts.set(new Map([...counts.value, ...[...changed].map((name) => [name, countOf(name) + 1] as const)]))
  const again = changed.size > 0
  changed.clear()
  cancelPublish = again ? later(SETTLE_MS, publish) : null
}

const countOf = (name: string): number => counts.value.get(name) ?? 0

/** A number that grows when data of these names has changed. */
export function useChanges(names: readonly string[]): number {
  useCell(counts)
  return names.length === 0 ? 0 : [...names, ALL].reduce((sum, name) => sum + countOf(name), 0)
}

function take(update: LiveUpdate): void {
  const pushed = new Map(update.batches.map((batch) => [batch.id, batch]))
  if (pushed.size > 0) batches.set(new Map([...batches.value, ...pushed]))
  const told = Object.entries(update.versions).filter(([name, version]) => versions.get(name) !== version)
  const isFirst = versions.size === 0
  for (const [name, version] of told) versions.set(name, version)
  if (!isFirst) markChanged([...told.map(([name]) => name), ...(pushed.size > 0 ? ['usage', 'status'] : [])])
}

function takeSnapshot(update: LiveUpdate): void {
  const [open, ends] = [[...batches.value.values()].filter((batch) => !ended(batch)), unfinished.value]
  // A batch missing from the snapshot has ended, or is older than the listed ones.
  if (ends === null || JSON.stringify(open) !== JSON.stringify(update.batches)) {
    batches.set(new Map([...batches.value].filter(([, batch]) => ended(batch))))
    take(update)
  } else take({ ...update, batches: [] })
  unfinished.set(new Set(update.batches.map(({ id }) => id)))
  staleSince.set(state.value === 'live' ? null : now())
}

/** Follows changes until the returned function is called. */
export function follow(): () => void {
  const source = new EventSource(serviceUrl(PATH))
  const endAll = every(ALL_MS, () => markChanged([ALL]))
  const poll = (): void => void get<LiveUpdate>(PATH).then(takeSnapshot, () => {})
  // A proxy may hold a stream back without an error: polling goes on until the first event.
  let endPolling: (() => void) | null = every(POLL_MS, poll)
  let isFirst = true
  source.onopen = () => {
    isFirst = true
  }
  source.addEventListener('update', (event: MessageEvent<string>) => {
    endPolling?.()
    endPolling = null
    state.set('live')
    const update = JSON.parse(event.data) as LiveUpdate
    if (isFirst) takeSnapshot(update)
    else take(update)
    isFirst = false
  })
  source.onerror = () => {
    state.set('polling')
    poll()
    endPolling ??= every(POLL_MS, poll)
  }
  return () => {
    source.close()
    endPolling?.()
    endAll()
    state.set('connecting')
    unfinished.set(null)
  }
}

export function useLive(): {
  batches: ReadonlyMap<string, BatchObject>
  state: LiveState
  /** The unfinished batches; null until they are known. */
  open: readonly BatchObject[] | null
} {
  const known = useCell(batches)
  const hasSnapshot = useCell(unfinished) !== null
  const rest = hasSnapshot ? [...known.values()].filter((batch) => !ended(batch)) : null
  return { batches: known, state: useCell(state), open: rest }
}

/**
 * Calls `reload` for ended batches, also for a batch that is shown as unfinished and missing in a snapshot, since it
 * ended unnoticed.
 */
export function useMissedEnds(shown: readonly BatchObject[], reload: () => void): void {
  const open = useCell(unfinished)
  const running = useRef(new Set<string>())
  useEffect(() => {
    for (const batch of shown) {
      if (!ended(batch)) running.current.add(batch.id)
      else if (running.current.delete(batch.id)) justEnded.set(batch)
    }
  })
  useEffect(() => {
    if (open && shown.some((batch) => !ended(batch) && !open.has(batch.id))) reload()
  }, [open, shown.length > 0])
}

/** The latest state of a batch: as read, or as pushed since. */
export function latest(batch: BatchObject, pushed: ReadonlyMap<string, BatchObject>): BatchObject {
  const other = pushed.get(batch.id)
  return other && isNewer(other, batch) ? other : batch
}

/** Whether state `a` is newer than `b`: counts only grow, and an ended batch may be read again. */
function isNewer(a: BatchObject, b: BatchObject): boolean {
  const done = ({ request_counts: { completed, failed } }: BatchObject): number => completed + failed
  return ended(a) !== ended(b) ? ended(a) : !ended(a) && done(a) >= done(b)
}

export const ended = ({ status }: Pick<BatchObject, 'status'>): boolean => isTerminal(status)

/** The rate of a batch and its estimated end; none of a paused batch. */
export function speedOf({ progress, paused_at }: BatchObject): {
  lines_per_s: number | null
  estimated_completion: number | null
} {
  const { lines_per_s = null, estimated_completion = null } = (paused_at === undefined && progress) || {}
  return { lines_per_s, estimated_completion }
}
