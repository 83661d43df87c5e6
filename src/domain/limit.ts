// A limit caps the spend within a window of the UTC calendar: of one entity, of each entity of a type, or of the
// whole project. These are pure rules; the ledger knows the spend.
import { entityType } from './entity.ts'

export const LIMIT_SCOPES = ['entity', 'entity_type', 'project'] as const
export type LimitScope = (typeof LIMIT_SCOPES)[number]

export const LIMIT_METRICS = ['cost_usd', 'tokens'] as const
export type LimitMetric = (typeof LIMIT_METRICS)[number]

/** A part of the UTC calendar: from its first day to just before `end`, both as days from the first of a month. */
type CalendarPart = (day: number, weekday: number, days: number) => { start: number; end: number }

/** The windows of limits. `words`: how limit errors (ledger/limit-error.ts) name a limit of the window, by language. */
export const WINDOWS = {
  day: {
    part: (day) => ({ start: day, end: day + 1 }),
    words: { en: 'daily', de: 'Tageslimit', es: 'diario', fr: 'quotidienne', ja: '1日', zh: '每日' },
  },
  /** From Monday, as ISO 8601 counts weeks. */
  week: {
    part: (day, weekday) => ({ start: day - ((weekday + 6) % 7), end: day - ((weekday + 6) % 7) + 7 }),
    words: { en: 'weekly', de: 'Wochenlimit', es: 'semanal', fr: 'hebdomadaire', ja: '1週間', zh: '每周' },
  },
  month: {
    part: (_day, _weekday, days) => ({ start: 1, end: 1 + days }),
    words: { en: 'monthly', de: 'Monatslimit', es: 'mensual', fr: 'mensuelle', ja: '1か月', zh: '每月' },
  },
} satisfies Record<string, { part: CalendarPart; words: Record<string, string> }>
export type LimitWindow = keyof typeof WINDOWS
export const LIMIT_WINDOWS = Object.keys(WINDOWS) as LimitWindow[]

export const LIMIT_ACTIONS = ['block', 'notify'] as const
export type LimitAction = (typeof LIMIT_ACTIONS)[number]

/** From `start` to just before `end`, Unix ms. */
export interface Period {
  start: number
  end: number
}

/** The window of the UTC calendar in which `now` lies. */
export function windowAt(window: LimitWindow, now: number): Period {
  const date = new Date(now)
  const [year, month] = [date.getUTCFullYear(), date.getUTCMonth()]
  const days = new Date(Date.UTC(year, month + 1, 0)).getUTCDate()
  const { part }: { part: CalendarPart } = WINDOWS[window]
  const { start, end } = part(date.getUTCDate(), date.getUTCDay(), days)
  return { start: Date.UTC(year, month, start), end: Date.UTC(year, month, end) }
}

/** The spender of a project limit; no entity is an empty text. */
export const WHOLE_PROJECT = ''

/**
 * The spender that the limit counts for work of `entity`; null when the limit does not match. `subject`: the entity or the
 * entity type, as the scope says.
 */
export function spenderOf(
  { scope, subject }: { scope: LimitScope; subject: string },
  entity: string | null,
): string | null {
  if (scope === 'project') return WHOLE_PROJECT
  if (entity === null) return null
  return subject === (scope === 'entity' ? entity : entityType(entity)) ? entity : null
}

/** The threshold of the cap itself. */
export const REACHED = 1

/** The thresholds that `spent` has reached, ascending; 1 is the cap. */
export function thresholdsMet(
  limit: { amount: number; notify_at: readonly number[] },
  spent: number,
): number[] {
  const fractions = [...limit.notify_at.filter((fraction) => fraction < REACHED), REACHED]
  return fractions.filter((fraction) => spent >= Math.round(fraction * limit.amount))
}
