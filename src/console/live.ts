// Follows batches as they change: by one stream of events per tab, open while a page uses it, or by polling unfinished
// batches every few seconds where streams do not work.
import { useEffect, useRef } from 'preact/hooks'
import { isTerminal } from '../domain/batch.ts'
import type { BatchObject } from '../wire/batch.ts'
import type { LiveUpdate } from '../wire/status.ts'
import { get, serviceUrl } from './api.ts'
import { every, later } from './browser-clock.ts'
import { Cell, useCell } from './cell.ts'

const PATH = '/v1/live'
const POLL_MS = 3_000
/** A page that is left and one that is opened right after it share the stream. */
const LINGER_MS = 2_000

type LiveState = 'connecting' | 'live' | 'polling'

const batches = new Cell<ReadonlyMap<string, BatchObject>>(new Map())
const state = new Cell<LiveState>('connecting')
/** Those of the last snapshot. */
const unfinished = new Cell<ReadonlySet<string> | null>(null)

/** The last batch that ended while a page showed it. */
export const justEnded = new Cell<BatchObject | null>(null)

let watchers = 0
let end: (() => void) | null = null
let cancelEnd: () => void = () => {}

function take({ batches: changed }: LiveUpdate): void {
  if (changed.length > 0)
    batches.set(new Map([...batches.value, ...changed.map((batch) => [batch.id, batch] as const)]))
}

function takeSnapshot(update: LiveUpdate): void {
  // What it lacks has ended meanwhile, or is older than all of it.
  batches.set(new Map([...batches.value].filter(([, batch]) => ended(batch))))
  take(update)
  unfinished.set(new Set(update.batches.map(({ id }) => id)))
}

function open(): () => void {
  const source = new EventSource(serviceUrl(PATH))
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
    state.set('connecting')
    unfinished.set(null)
  }
}

/** Keeps the stream open while the component is shown. */
export function useLive(): {
  batches: ReadonlyMap<string, BatchObject>
  state: LiveState
  /** The unfinished ones; null until they are known. */
  open: readonly BatchObject[] | null
} {
  useEffect(() => {
    cancelEnd()
    watchers++
    end ??= open()
    return () => {
      watchers--
      if (watchers > 0) return
      cancelEnd = later(LINGER_MS, () => {
        end?.()
        end = null
      })
    }
  }, [])
  const known = useCell(batches)
  const hasSnapshot = useCell(unfinished) !== null
  const rest = hasSnapshot ? [...known.values()].filter((batch) => !ended(batch)) : null
  return { batches: known, state: useCell(state), open: rest }
}

/**
 * Calls back for ended batches, and reads a batch again that is shown as unfinished and missing in a snapshot,
 * because it ended unnoticed.
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

/** The latest state of a batch: as it was read, or as it was pushed since. */
export function latest(batch: BatchObject, pushed: ReadonlyMap<string, BatchObject>): BatchObject {
  const other = pushed.get(batch.id)
  return other && isNewer(other, batch) ? other : batch
}

/** Counts only grow, and a batch that has ended stays so; what was read of it may have changed since. */
function isNewer(a: BatchObject, b: BatchObject): boolean {
  const done = ({ request_counts: { completed, failed } }: BatchObject): number => completed + failed
  return ended(a) !== ended(b) ? ended(a) : !ended(a) && done(a) >= done(b)
}

export function ended({ status }: Pick<BatchObject, 'status'>): boolean {
  return isTerminal(status)
}

/** The rate of a batch and its estimated end; none of a paused batch. */
export function speedOf({ progress, paused_at }: BatchObject): {
  lines_per_s: number | null
  estimated_completion: number | null
} {
  const { lines_per_s = null, estimated_completion = null } = (paused_at === undefined && progress) || {}
  return { lines_per_s, estimated_completion }
}

export function endedAt(batch: BatchObject): number | undefined {
  return batch.completed_at ?? batch.failed_at ?? batch.expired_at ?? batch.cancelled_at ?? undefined
}
