// The filters of a list are stored in the address.
import type { ComponentChildren, VNode } from 'preact'
import { useEffect, useState } from 'preact/hooks'
import { later } from '../browser-clock.ts'
import { t } from '../i18n.ts'
import { replaceQuery, useAddress } from '../router.ts'
import { SelectField, TextField } from './field.tsx'

/** So long after a key was pressed, the text is searched for. */
const TYPING_MS = 200

export interface Filter {
  /** Of the parameter in the address. */
  name: string
  label: string
  placeholder?: string
  /** What can be chosen; without these, it is a text or a day. */
  options?: readonly (readonly [value: string, title: string])[]
  day?: boolean
  /** What holds while the address says nothing. */
  value?: string
  /** What it sets to null in the address. */
  clears?: readonly string[]
}

export function FilterBar({
  filters,
  children,
}: {
  filters: readonly (Filter | null)[]
  children?: ComponentChildren
}): VNode {
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
    </div>
  )
}

/** A filter that another page, or a click, has set: it is removed by a click. */
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

/** The value after a pause in typing. */
export function useSettled<T>(value: T): T {
  const name = JSON.stringify(value)
  const [settled, settle] = useState(value)
  useEffect(
    () => (name === JSON.stringify(settled) ? undefined : later(TYPING_MS, () => settle(value))),
    [name],
  )
  return settled
}

/** The days from and to, of this calendar. */
export const days = (): Filter[] => [
  { name: 'since', label: t('usage.since'), day: true },
  { name: 'until', label: t('usage.until'), day: true },
]

/** Where a day of the reader's calendar begins, or one so many days later, in Unix seconds; null for no day. */
export function dayStart(text: string | null, daysLater = 0): number | null {
  const at = new Date(`${text}T00:00`)
  at.setDate(at.getDate() + daysLater)
  return Number.isNaN(at.getTime()) ? null : at.getTime() / 1000
}

/** With the choice of no filter first. */
export function anyOf(
  options: readonly (readonly [value: string, title: string])[],
): readonly (readonly [string, string])[] {
  return [['', t('all')], ...options]
}
