// Reads an answer of the service for a page. The last answer stays until the next one has arrived.
import { useCallback, useEffect, useRef, useState } from 'preact/hooks'
import { type ApiFailure, connectionLost, get, type Query } from './api.ts'
import { useCell } from './cell.ts'

export interface Resource<T> {
  data: T | null
  failure: ApiFailure | null
  loading: boolean
  reload: () => void
}

/** `dependencies` identify the resource; when they change, the last answer is dropped. */
export function useResource<T>(
  read: (signal: AbortSignal) => Promise<T>,
  dependencies: readonly unknown[],
): Resource<T> {
  const name = JSON.stringify(dependencies)
  const [state, setState] = useState<{
    name: string
    data: T | null
    failure: ApiFailure | null
    loading: boolean
  }>({
    name,
    data: null,
    failure: null,
    loading: true,
  })
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
  }, [name, turn])
  const reload = useCallback(() => setTurn((last) => last + 1), [])
  // What was read before the service was gone may have changed since.
  const isLost = useCell(connectionLost) !== null
  const wasLost = useRef(isLost)
  useEffect(() => {
    if (wasLost.current && !isLost) reload()
    wasLost.current = isLost
  }, [isLost])
  const current = state.name === name ? state : { data: null, failure: null, loading: true }
  return { data: current.data, failure: current.failure, loading: current.loading, reload }
}

/** The service's answer at this path; none is read while it is null. */
export function useGet<T>(path: string | null, query: Query = {}): Resource<T> {
  return useResource<T>(
    (signal) => (path === null ? new Promise(() => {}) : get<T>(path, query, { signal })),
    [path, query],
  )
}

interface Action {
  busy: boolean
  failure: ApiFailure | null
  /** Does nothing while it runs already. Tells whether it succeeded. */
  run: (act: () => Promise<void>) => Promise<boolean>
  clear: () => void
}

/** A change that a person asks for. */
export function useAction(): Action {
  const [busy, setBusy] = useState(false)
  const [failure, setFailure] = useState<ApiFailure | null>(null)
  const running = useRef(false)
  const run = useCallback(async (act: () => Promise<void>): Promise<boolean> => {
    if (running.current) return false
    running.current = true
    setBusy(true)
    setFailure(null)
    try {
      await act()
      return true
    } catch (error) {
      setFailure(error as ApiFailure)
      return false
    } finally {
      running.current = false
      setBusy(false)
    }
  }, [])
  const clear = useCallback(() => setFailure(null), [])
  return { busy, failure, run, clear }
}
