// Reads an answer or a list of the service for a page. The last answer stays until the next one has arrived.
import { useCallback, useEffect, useMemo, useRef, useState } from 'preact/hooks'
import type { List } from '../wire/shape.ts'
import { type ApiFailure, connectionLost, get, getAll, pathWith, type Query } from './api.ts'
import { every, later } from './browser-clock.ts'
import { useCell } from './cell.ts'
import { ListPages, type ListSource } from './list-pages.ts'
import { useChanges } from './live.ts'
import { currentAddress } from './router.ts'
import { useSession } from './session.ts'

/** The rows of a page, as many as the service sends of most lists. */
const PAGE = 100
/** The number of lists that are kept for a return of the reader. */
const KEPT_MAX = 6

export interface Resource<T> {
  data: T | null
  failure: ApiFailure | null
  loading: boolean
  reload: () => void
}

type Read<T> = Omit<Resource<T>, 'reload'> & { name: string }

/** The time in ms after which a resource is read again, by its data; null: never. */
type PollMs<T> = (data: T | null) => number | null

/** Reads a resource. Changed `dependencies` drop the last answer. Changes `about` these names read it again. */
export function useResource<T>(
  read: (signal: AbortSignal) => Promise<T>,
  dependencies: readonly unknown[],
  { about = [], pollMs = () => null }: { about?: readonly string[]; pollMs?: PollMs<T> } = {},
): Resource<T> {
  const name = JSON.stringify(dependencies)
  const changes = useChanges(about)
  const [state, setState] = useState<Read<T>>({ name, data: null, failure: null, loading: true })
  const [turn, setTurn] = useState(0)
  const latest = useRef(read)
  latest.current = read
  useEffect(() => {
    const abort = new AbortController()
    setState((last) =>
      last.name === name ? { ...last, loading: true } : { name, data: null, failure: null, loading: true },
    )
    latest.current(abort.signal).then(
      (data) => abort.signal.aborted || setState({ name, data, failure: null, loading: false }),
      (failure: ApiFailure) =>
        abort.signal.aborted ||
        setState((last) => ({ name, data: last.name === name ? last.data : null, failure, loading: false })),
    )
    return () => abort.abort()
  }, [name, turn, changes])
  const reload = useCallback(() => setTurn((last) => last + 1), [])
  useReconnection(reload)
  const current = state.name === name ? state : { data: null, failure: null, loading: true }
  const ms = pollMs(current.data)
  useEffect(() => (ms === null ? undefined : every(ms, reload)), [ms])
  return { data: current.data, failure: current.failure, loading: current.loading, reload }
}

/** Loads the data again after an interruption of the service, since it may have changed meanwhile. */
function useReconnection(reload: () => void): void {
  const isLost = useCell(connectionLost) !== null
  const wasLost = useRef(isLost)
  useEffect(() => {
    if (wasLost.current && !isLost) reload()
    wasLost.current = isLost
  }, [isLost])
}

/** Reads the answer at a path; nothing while it is null. */
export function useGet<T>(path: string | null, query: Query = {}, pollMs?: PollMs<T>): Resource<T> {
  return useResource<T>(
    (signal) => (path === null ? new Promise(() => {}) : get<T>(path, query, { signal })),
    [path, query],
    { about: namesOf(path), pollMs },
  )
}

/** The names in live updates of the resources that the answer at a path contains. */
function namesOf(path: string | null): string[] {
  const { 1: name = '' } = /^\/v1\/(\w+)/.exec(path ?? '') ?? []
  const also = { status: ['servers'], files: ['batches'] }[name] ?? []
  return [path?.endsWith('/deliveries') ? 'deliveries' : name, ...also]
}

/** Reads a whole list, which must be short; nothing while the path is null. */
export function useAll<T>(path: string | null): Resource<T[]> {
  return useResource(
    (signal) => (path === null ? new Promise(() => {}) : getAll<T>(path, { signal })),
    [path],
    { about: namesOf(path) },
  )
}

const kept = new Map<string, ListPages<unknown>>()

/** A paged list, as it was left if the reader returns to it. */
export function useListPages<T>(source: ListSource<T>, about: readonly string[] = []): ListPages<T> {
  const [, redraw] = useState({})
  const name = `${useSession()?.api_key_id} ${source.name}`
  const isFirst = useRef(true)
  const pages = useMemo(() => {
    const left = isFirst.current && currentAddress().isReturn ? kept.get(name) : undefined
    isFirst.current = false
    // A name always has rows of one type.
    const pages = (left as ListPages<T> | undefined) ?? new ListPages(source)
    if (left) pages.refresh()
    kept.delete(name)
    kept.set(name, pages)
    for (const oldest of kept.keys()) if (kept.size > KEPT_MAX) kept.delete(oldest)
    return pages
  }, [name])
  useEffect(() => {
    pages.start(() => redraw({}))
    return () => pages.end()
  }, [pages])
  const changes = useChanges(about)
  const seen = useRef(changes)
  useEffect(() => {
    if (seen.current !== changes) pages.refresh()
    seen.current = changes
  }, [changes])
  useReconnection(() => pages.refresh())
  return pages
}

/** The pause in typing, in ms, after which a text is searched for. */
const TYPING_MS = 200

/** The latest value that has not changed during a pause in typing. */
export function useSettled<T>(value: T): T {
  const name = JSON.stringify(value)
  const [settled, settle] = useState(value)
  useEffect(
    () => (name === JSON.stringify(settled) ? undefined : later(TYPING_MS, () => settle(value))),
    [name],
  )
  return settled
}

/** A paged list of the service, by the query after a pause in typing. */
export function usePages<T>(path: string, typed: Query): ListPages<T> {
  const query = useSettled(typed)
  const source: ListSource<T> = {
    name: pathWith(path, query),
    read: async (cursor, signal) => {
      const page = { ...query, limit: PAGE, starting_after: cursor }
      const { data, next_cursor } = await get<List<T>>(path, page, { signal })
      return { rows: data, next: next_cursor }
    },
  }
  return useListPages(source, namesOf(path))
}

interface Action {
  busy: boolean
  failure: ApiFailure | null
  /** Runs `act`, unless one is running. Returns its failure, if any. */
  run: (act: () => Promise<void>) => Promise<ApiFailure | null>
  clear: () => void
}

/** The state of a change that a person requests. */
export function useAction(): Action {
  const [busy, setBusy] = useState(false)
  const [failure, setFailure] = useState<ApiFailure | null>(null)
  const running = useRef(false)
  const run = useCallback(async (act: () => Promise<void>): Promise<ApiFailure | null> => {
    if (running.current) return null
    running.current = true
    setBusy(true)
    setFailure(null)
    try {
      await act()
      return null
    } catch (error) {
      setFailure(error as ApiFailure)
      return error as ApiFailure
    } finally {
      running.current = false
      setBusy(false)
    }
  }, [])
  const clear = useCallback(() => setFailure(null), [])
  return { busy, failure, run, clear }
}
