// The search (Ctrl-K or `/`) finds pages, batches, files, lines, entities, keys, errors and request IDs by a few characters.
import type { ComponentChildren, VNode } from 'preact'
import { useEffect, useRef, useState } from 'preact/hooks'
import type { BatchObject } from '../wire/batch.ts'
import type { BatchErrors, FoundLine } from '../wire/batch-line.ts'
import type { FileObject } from '../wire/file.ts'
import type { ApiKeyObject } from '../wire/project.ts'
import type { List } from '../wire/shape.ts'
import type { UsageObject } from '../wire/usage.ts'
import { type ApiFailure, get, getAll, getPage, pathWith, type Query } from './api.ts'
import { later } from './browser-clock.ts'
import { type MessageKey, t } from './i18n.ts'
import { keptList } from './kept.ts'
import { shownPages } from './pages.tsx'
import { Icon } from './parts/button.tsx'
import { closeDialog, Dialog, openDialog } from './parts/dialog.tsx'
import { TextField } from './parts/field.tsx'
import { type SavedView, VIEWS } from './parts/filters.tsx'
import { FailureNotice, Loading } from './parts/notice.tsx'
import { RECENT, type Recent, Time } from './parts/page.tsx'
import { BatchStatus, LineBadge } from './parts/status.tsx'
import { href } from './router.ts'
import { may } from './session.ts'

const TYPING_MS = 150
const SHOWN = 5

interface Found {
  kind: MessageKey
  to: string
  text: string
  note?: ComponentChildren
  /** The time of creation in Unix seconds. */
  at?: number
}

export function Search(): VNode {
  useEffect(() => {
    const press = (event: KeyboardEvent): void => {
      const inField =
        event.target instanceof Element && event.target.closest('input, textarea, select, dialog')
      const isSlash = event.key === '/' && !event.ctrlKey && !event.metaKey && !inField
      if (!isSlash && !(event.key === 'k' && (event.ctrlKey || event.metaKey))) return
      event.preventDefault()
      if (!document.querySelector('dialog')) openDialog(<SearchDialog />)
    }
    document.addEventListener('keydown', press)
    return () => document.removeEventListener('keydown', press)
  }, [])
  return (
    <button type="button" class="nav-link search-button" onClick={() => openDialog(<SearchDialog />)}>
      <Icon name="audit" />
      {t('search')}
      <kbd class="push">Ctrl K</kbd>
    </button>
  )
}

function SearchDialog(): VNode {
  const [typed, type] = useState('')
  const [text, setText] = useState('')
  useEffect(() => later(TYPING_MS, () => setText(typed.trim())), [typed])
  const { rows, isWhole, failure } = useFound(text)
  const list = useRef<HTMLDivElement>(null)
  useEffect(() => {
    /** Moves the focus by the arrow keys, from the field to the last link and back. */
    const move = (event: KeyboardEvent): void => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key]
      const places: Element[] = [...(list.current?.querySelectorAll('input, a') ?? [])]
      if (step === undefined || !document.activeElement) return
      event.preventDefault()
      const next = places.at((places.indexOf(document.activeElement) + step) % places.length)
      if (next instanceof HTMLElement) next.focus()
    }
    document.addEventListener('keydown', move)
    return () => document.removeEventListener('keydown', move)
  }, [])
  const isCurrent = text === typed.trim()
  // Whether Enter was pressed before the result was found.
  const [entered, enter] = useState(false)
  useEffect(() => {
    if (!entered || !isCurrent || (rows.length === 0 && !isWhole)) return
    list.current?.querySelector('a')?.click()
    enter(false)
  }, [entered, isCurrent, rows.length, isWhole])
  return (
    <Dialog title={t('search')} onClose={closeDialog} onSubmit={() => enter(true)}>
      <div ref={list} class="stack tight">
        <TextField
          label={t('search.what')}
          type="search"
          value={typed}
          onInput={type}
          placeholder={t('search.hint')}
          autoFocus
        />
        <FailureNotice failure={failure} />
        {(isCurrent ? rows : []).map(({ kind, to, text, note, at }) => (
          <a class="menu-item search-found" href={href(to)} key={kind + to}>
            <span class="muted small">{t(kind)}</span>
            <span class="clip" title={text}>
              {text}
            </span>
            {note ? <span class="muted small clip">{note}</span> : null}
            {at ? (
              <span class="muted small">
                <Time at={at} short />
              </span>
            ) : null}
          </a>
        ))}
        {!isCurrent || !isWhole ? <Loading rows={1} /> : null}
        {isCurrent && isWhole && rows.length === 0 ? <p class="muted">{t('nothingFound')}</p> : null}
      </div>
    </Dialog>
  )
}

/** The results of each source so far, in the order of the sources. */
function useFound(text: string): { rows: readonly Found[]; isWhole: boolean; failure: ApiFailure | null } {
  const none: (readonly Found[] | null)[] = []
  const [state, setState] = useState({ text, parts: none })
  const [failure, setFailure] = useState<ApiFailure | null>(null)
  useEffect(() => {
    const abort = new AbortController()
    const sources = sourcesOf(text)
    setState({ text, parts: sources.map(() => null) })
    setFailure(null)
    for (const [i, source] of sources.entries()) {
      const take = (found: readonly Found[]): void => {
        if (!abort.signal.aborted) setState((last) => ({ ...last, parts: last.parts.with(i, found) }))
      }
      Promise.resolve(source(text, abort.signal)).then(take, (error: ApiFailure) => {
        if (!abort.signal.aborted) setFailure(error)
        take([])
      })
    }
    return () => abort.abort()
  }, [text])
  const isCurrent = state.text === text && state.parts.length > 0
  const rows = isCurrent ? state.parts.flatMap((found) => found ?? []) : []
  return { rows, isWhole: isCurrent && !state.parts.includes(null), failure }
}

type Source = (text: string, signal: AbortSignal) => readonly Found[] | Promise<readonly Found[]>

/** The sources for a text, local ones first; no source waits for another. */
function sourcesOf(text: string): Source[] {
  if (text === '') return [findRecent, findPages]
  if (/^req_\w{26,}$/.test(text)) return [() => [{ kind: 'audit.record', to: `/audit/${text}`, text }]]
  const mayBatches = may('batches:read')
  return [
    findPages,
    findRecent,
    ...(mayBatches ? [findBatches, findLines] : []),
    ...(may('files:read') ? [findFiles, findCalls] : []),
    ...(may('usage:read') || may('limits:read') ? [findEntities] : []),
    ...(may('keys:read') ? [findKeys] : []),
    ...(mayBatches && text.length >= 4 ? [findErrors] : []),
  ]
}

const has = (text: string, part: string): boolean => text.toLowerCase().includes(part.toLowerCase())

const findPages: Source = (text) =>
  shownPages()
    .map(({ path, title }): Found => ({ kind: 'search.page', to: path, text: t(title) }))
    .filter((page) => has(page.text, text))

/** Finds saved views, and recently opened pages. */
const findRecent: Source = (text) => {
  const views = keptList<SavedView>(VIEWS).map(({ name, path, query }): Found => {
    return { kind: 'search.view', to: path + query, text: name }
  })
  const recent = keptList<Recent>(RECENT).map((page): Found => ({ kind: 'search.recent', ...page }))
  return [...recent, ...views].filter((found) => has(found.text, text))
}

const findKeys: Source = async (text, signal) =>
  (await getAll<ApiKeyObject>('/v1/keys', { signal }))
    .filter(({ name, id }) => has(`${name} ${id}`, text))
    .slice(0, SHOWN)
    .map(({ name, id, created: at }) => {
      return { kind: 'audit.key', to: pathWith('/audit', { api_key_id: id }), text: name ?? id, note: id, at }
    })

/** Finds calls about a file, which may be deleted. */
const findCalls: Source = (text) => {
  const to = pathWith('/audit', { path: `/v1/files/${text}` })
  return /^file_\w{26}$/.test(text) ? [{ kind: 'nav.audit', to, text }] : []
}

const ERRORS_MAX = 6

const findErrors: Source = async (text, signal) => {
  const { data } = await get<List<BatchObject>>('/v1/batches', { limit: 50 }, { signal })
  const failed = data.filter(({ request_counts }) => request_counts.failed > 0).slice(0, ERRORS_MAX)
  const found = await Promise.all(
    failed.map(async ({ id, name, created }) => {
      const { groups } = await get<BatchErrors>(`/v1/batches/${id}/errors`, {}, { signal })
      return groups
        .filter(({ code, message }) => has(`${code} ${message}`, text))
        .map(({ code, message, pattern }): Found => {
          const to = pathWith(`/batches/${id}`, { status: 'failed', code, message: pattern })
          return {
            kind: 'search.error',
            to: `${to}#lines`,
            text: `${code}: ${message}`,
            note: name,
            at: created,
          }
        })
    }),
  )
  return found.flat().slice(0, SHOWN)
}

async function findBatches(search: string, signal: AbortSignal): Promise<Found[]> {
  const { data } = await getPage<BatchObject>('/v1/batches', { search, limit: SHOWN }, { signal })
  return data.map((batch) => {
    const { id, name, created } = batch
    return {
      kind: 'batch',
      to: `/batches/${id}`,
      text: name,
      note: [<BatchStatus batch={batch} />, ' ', id],
      at: created,
    }
  })
}

/** Finds lines with exactly this custom_id, by an index; else those that contain it. */
async function findLines(text: string, signal: AbortSignal): Promise<Found[]> {
  const read = async (query: Query): Promise<FoundLine[]> =>
    (await getPage<FoundLine>('/v1/lines', { ...query, limit: SHOWN }, { signal })).data
  const exact = await read({ custom_id: text })
  const lines = exact.length > 0 ? exact : await read({ search: text })
  return lines.map((found) => {
    const { batch_id, line, custom_id, finished_at } = found
    const at = finished_at ?? undefined
    const note = [<LineBadge line={found} />, ' ', batch_id]
    return { kind: 'audit.line', to: `/batches/${batch_id}/lines/${line}`, text: custom_id, note, at }
  })
}

async function findFiles(search: string, signal: AbortSignal): Promise<Found[]> {
  const { data } = await getPage<FileObject>(
    '/v1/files',
    { search, limit: SHOWN, purpose: 'batch' },
    { signal },
  )
  return data.map(({ id, filename, created }) => {
    return { kind: 'new.file', to: pathWith('/files', { q: id }), text: filename, note: id, at: created }
  })
}

/** Finds entities that contain the text; where there are too many for a report, the one with this name. */
async function findEntities(text: string, signal: AbortSignal): Promise<Found[]> {
  const read = (entity?: string): Promise<UsageObject> =>
    get('/v1/usage/entities', { entity, group_by: 'entity' }, { signal })
  const { groups } = await read().catch(() => read(text))
  return (groups ?? [])
    .flatMap(({ entity }) => (entity?.toLowerCase().includes(text.toLowerCase()) ? [entity] : []))
    .slice(0, SHOWN)
    .map((entity) => ({ kind: 'line.entity', to: pathWith('/usage', { entity }), text: entity }))
}
