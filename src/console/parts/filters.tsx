// The filters of a list are stored in the address.
import type { ComponentChildren, VNode } from 'preact'
import { useState } from 'preact/hooks'
import { t } from '../i18n.ts'
import { keepList, keptList, useKept } from '../kept.ts'
import { href, navigate, replaceQuery, useAddress } from '../router.ts'
import { Icon, Menu, TextButton } from './button.tsx'
import { FormDialog, openDialog } from './dialog.tsx'
import { SelectField, TextField } from './field.tsx'

export interface Filter {
  /** The name of the parameter that holds the filter in the address. */
  name: string
  label: string
  placeholder?: string
  /** The choices of the filter; absent: it is a text or a day. */
  options?: readonly (readonly [value: string, title: string])[]
  day?: boolean
  /** The value of the filter while the address has no parameter. */
  value?: string
  /** Parameters that a change of the filter removes from the address. */
  clears?: readonly string[]
}

type FilterBarProps = { filters: readonly (Filter | null)[]; children?: ComponentChildren }

export function FilterBar({ filters, children }: FilterBarProps): VNode {
  const { query } = useAddress()
  return (
    <div class="filters" role="search">
      {filters.map((filter) => {
        if (!filter) return null
        const { name, label, options, day, clears = [] } = filter
        const value = query.get(name) ?? filter.value ?? ''
        const set = (text: string): void =>
          replaceQuery({ ...Object.fromEntries(clears.map((other) => [other, null])), [name]: text })
        if (options) return <SelectField label={label} value={value} options={options} onInput={set} />
        if (day) return <TextField label={label} type="date" value={value} onInput={set} />
        const { placeholder } = filter
        return <TextField label={label} type="search" value={value} onInput={set} placeholder={placeholder} />
      })}
      {children}
      <Views />
    </div>
  )
}

/** A named list as its reader has filtered and sorted it. */
export interface SavedView {
  name: string
  path: string
  /** The query of the saved view, beginning with a question mark. */
  query: string
}

export const VIEWS = 'views'

function Views(): VNode {
  const { path } = useAddress()
  const [views, setViews] = useKept<SavedView>(VIEWS)
  const save = (): void => openDialog(<SaveView path={path} />)
  return (
    <Menu label={t('views')}>
      {views
        .filter((view) => view.path === path)
        .map((view) => (
          <div class="row" key={view.name}>
            <a class="menu-item grow" href={href(path + view.query)}>
              {view.name}
            </a>
            <TextButton
              label={<Icon name="cross" />}
              title={t('remove')}
              onClick={() => setViews(views.filter((other) => other !== view))}
            />
          </div>
        ))}
      <button type="button" class="menu-item" onClick={save}>
        {t('views.save')}
      </button>
    </Menu>
  )
}

function SaveView({ path }: { path: string }): VNode {
  const [name, setName] = useState('')
  const act = async (): Promise<void> => {
    const others = keptList<SavedView>(VIEWS).filter((view) => view.path !== path || view.name !== name)
    keepList(VIEWS, [...others, { name, path, query: location.search }])
    navigate(path + location.search)
  }
  return (
    <FormDialog title={t('views.save')} label={t('save')} act={act}>
      <TextField label={t('new.name')} value={name} onInput={setName} required autoFocus />
    </FormDialog>
  )
}

/** A filter from another page or a click; a click removes it. */
export function FilterChip({ name, title, value }: { name: string; title: string; value: string }): VNode {
  return (
    <button
      type="button"
      class="chip"
      title={t('lines.removeFilter')}
      onClick={() => replaceQuery({ [name]: null })}
    >
      <span class="muted">{title}</span>
      <span class="clip">{value}</span>
      <span aria-hidden="true">×</span>
    </button>
  )
}

/** The filters for the first and the last day, in local time. */
export const days = (): Filter[] => [
  { name: 'since', label: t('usage.since'), day: true },
  { name: 'until', label: t('usage.until'), day: true },
]

/** The begin of a local day, or of one `daysLater`, in Unix seconds; null for no day. */
export function dayStart(text: string | null, daysLater = 0): number | null {
  const at = new Date(`${text}T00:00`)
  at.setDate(at.getDate() + daysLater)
  return Number.isNaN(at.getTime()) ? null : at.getTime() / 1000
}

/** Adds the choice of no filter before `options`. */
export function anyOf(
  options: readonly (readonly [value: string, title: string])[],
): readonly (readonly [string, string])[] {
  return [['', t('all')], ...options]
}
