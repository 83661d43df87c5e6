// The search (Ctrl-K or `/`) finds pages, batches, files, lines, entities and request IDs by a few characters.
import type { VNode } from 'preact'
import { useEffect, useRef, useState } from 'preact/hooks'
import type { BatchObject } from '../wire/batch.ts'
import type { FoundLine } from '../wire/batch-line.ts'
import type { FileObject } from '../wire/file.ts'
import type { UsageObject } from '../wire/usage.ts'
import { get, getPage, pathWith, type Query } from './api.ts'
import { later } from './browser-clock.ts'
import { type MessageKey, t } from './i18n.ts'
import { shownPages } from './pages.ts'
import { Icon } from './parts/button.tsx'
import { closeDialog, Dialog, openDialog } from './parts/dialog.tsx'
import { TextField } from './parts/field.tsx'
import { FailureNotice, Loading } from './parts/notice.tsx'
import { useResource } from './resource.ts'
import { href } from './router.ts'
import { may } from './session.ts'

const TYPING_MS = 150
const SHOWN = 5

interface Found {
  kind: MessageKey
  to: string
  text: string
  note?: string
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
  const found = useResource((signal) => find(text, signal), [text])
  const list = useRef<HTMLDivElement>(null)
  useEffect(() => {
    /** By the arrows, from the field to the last link and back. */
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
  const isCurrent = text === typed.trim() && found.data !== null
  // Enter that comes before what is looked for.
  const [entered, enter] = useState(false)
  useEffect(() => {
    if (!entered || !isCurrent) return
    list.current?.querySelector('a')?.click()
    enter(false)
  }, [entered, isCurrent])
  const rows = isCurrent ? (found.data ?? []) : []
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
        <FailureNotice failure={found.failure} />
        {!isCurrent && !found.failure ? <Loading rows={2} /> : null}
        {rows.map(({ kind, to, text, note }) => (
          <a class="menu-item search-found" href={href(to)} key={to}>
            <span class="muted small">{t(kind)}</span>
            <span class="clip">{text}</span>
            {note ? <span class="muted small clip push">{note}</span> : null}
          </a>
        ))}
        {isCurrent && rows.length === 0 ? <p class="muted">{t('nothingFound')}</p> : null}
      </div>
    </Dialog>
  )
}

async function find(text: string, signal: AbortSignal): Promise<Found[]> {
  const words = text.toLowerCase()
  const pages = shownPages()
    .map(({ path, title }): Found => ({ kind: 'search.page', to: path, text: t(title) }))
    .filter((page) => page.text.toLowerCase().includes(words))
  if (text === '') return pages
  if (/^req_\w{26,}$/.test(text)) return [{ kind: 'audit.record', to: `/audit/${text}`, text }]
  const some = await Promise.all([
    may('batches:read') ? findBatches(text, signal) : [],
    may('batches:read') ? findLines(text, signal) : [],
    may('files:read') ? findFiles(text, signal) : [],
    may('usage:read') || may('limits:read') ? findEntities(text, signal) : [],
  ])
  return [...pages, ...some.flat()]
}

async function findBatches(search: string, signal: AbortSignal): Promise<Found[]> {
  const { data } = await getPage<BatchObject>('/v1/batches', { search, limit: SHOWN }, { signal })
  return data.map(({ id, name }) => ({ kind: 'batch', to: `/batches/${id}`, text: name, note: id }))
}

/** Those of exactly this custom_id, which an index finds; else those that contain it. */
async function findLines(text: string, signal: AbortSignal): Promise<Found[]> {
  const read = async (query: Query): Promise<FoundLine[]> =>
    (await getPage<FoundLine>('/v1/lines', { ...query, limit: SHOWN }, { signal })).data
  const exact = await read({ custom_id: text })
  const lines = exact.length > 0 ? exact : await read({ search: text })
  return lines.map(({ batch_id, line, custom_id }) => {
    return { kind: 'audit.line', to: `/batches/${batch_id}/lines/${line}`, text: custom_id, note: batch_id }
  })
}

async function findFiles(search: string, signal: AbortSignal): Promise<Found[]> {
  const { data } = await getPage<FileObject>(
    '/v1/files',
    { search, limit: SHOWN, purpose: 'batch' },
    { signal },
  )
  return data.map(({ id, filename }) => {
    return { kind: 'new.file', to: pathWith('/files', { q: id }), text: filename, note: id }
  })
}

/** Those that contain the text; where there are more than a report has, the one of this name. */
async function findEntities(text: string, signal: AbortSignal): Promise<Found[]> {
  const read = (entity?: string): Promise<UsageObject> =>
    get('/v1/usage/entities', { entity, group_by: 'entity' }, { signal })
  const { groups } = await read().catch(() => read(text))
  return (groups ?? [])
    .flatMap(({ entity }) => (entity?.toLowerCase().includes(text.toLowerCase()) ? [entity] : []))
    .slice(0, SHOWN)
    .map((entity) => ({ kind: 'line.entity', to: pathWith('/usage', { entity }), text: entity }))
}
