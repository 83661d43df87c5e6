// A limit caps the spend within a window of the UTC calendar: of one entity, of each entity of a type, of an API key,
// or of the whole project; of all models, or of one. The rules here are pure; the ledger counts the spend.
import { entityType } from './entity.ts'

export const LIMIT_SCOPES = ['entity', 'entity_type', 'project', 'key', 'model'] as const
export type LimitScope = (typeof LIMIT_SCOPES)[number]

export const LIMIT_METRICS = ['cost_usd', 'tokens', 'requests'] as const
export type LimitMetric = (typeof LIMIT_METRICS)[number]

/** A part of the UTC calendar: from its first day to just before `end`, both as days from the first of a month. */
type CalendarPart = (day: number, weekday: number, days: number) => { start: number; end: number }

/** The windows of limits. `words`: the name of the window in limit errors (ledger/limit-error.ts), by language. */
export const WINDOWS = {
  day: {
    part: (day) => ({ start: day, end: day + 1 }),
    words: { en: 'daily', de: 'Tageslimit', es: 'diario', fr: 'quotidienne', ja: '1日', zh: '每日' },
  },
  /** The week from Monday, as in ISO 8601. */
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

/** A period from `start` to just before `end`, Unix ms. */
export interface Period {
  start: number
  end: number
}

/** The period of the window that contains `now`. */
export function windowAt(window: LimitWindow, now: number): Period {
  const date = new Date(now)
  const [year, month] = [date.getUTCFullYear(), date.getUTCMonth()]
  const days = new Date(Date.UTC(year, month + 1, 0)).getUTCDate()
  const { part }: { part: CalendarPart } = WINDOWS[window]
  const { start, end } = part(date.getUTCDate(), date.getUTCDay(), days)
  return { start: Date.UTC(year, month, start), end: Date.UTC(year, month, end) }
}

/** The owner of a line's spend. `model`: null for the name of an unknown model. */
export interface Payer {
  entity: string | null
  key_id: string
  model: string | null
}

/** A key that lines of one API key share if their spend counts to the same accounts. */
export function payerKey({ entity, model }: Pick<Payer, 'entity' | 'model'>): string {
  return JSON.stringify([entity, model])
}

/** A limit's terms. `subject`: an entity, its type or a key, as the scope says. `model`: the only model, or ''. */
interface LimitTerms {
  scope: LimitScope
  subject: string
  model: string
}

/** The spender of a limit without an entity; no entity is an empty text. */
export const WHOLE_PROJECT = ''

/** The spender that the limit counts for a line; null when the limit does not match. */
export function spenderOf({ scope, subject, model }: LimitTerms, payer: Payer): string | null {
  if (model !== '' && model !== payer.model) return null
  if (scope === 'project' || scope === 'model') return WHOLE_PROJECT
  if (scope === 'key') return subject === payer.key_id ? WHOLE_PROJECT : null
  const { entity } = payer
  if (entity === null) return null
  return subject === (scope === 'entity' ? entity : entityType(entity)) ? entity : null
}

// An account is a sum of spend that a limit may count: of the project, of a key or of an entity; of all models, or of
// one. Each line counts to several accounts.

function account(owner: 'project' | 'key' | 'entity', name: string, model: string): string {
  return JSON.stringify([owner, name, model])
}

/** The account that a limit counts for a spender. */
export function accountOfLimit({ scope, subject, model }: LimitTerms, spender: string): string {
  if (scope === 'key') return account('key', subject, model)
  return spender === WHOLE_PROJECT ? account('project', '', model) : account('entity', spender, model)
}

/** The accounts to which a line's spend counts; without a key, only those of the entity. */
export function accountsOf({
  entity,
  key_id,
  model,
}: Omit<Payer, 'key_id'> & { key_id: string | null }): string[] {
  const found: string[] = []
  for (const one of model === null ? [''] : ['', model]) {
    if (key_id !== null) found.push(account('project', '', one), account('key', key_id, one))
    if (entity !== null) found.push(account('entity', entity, one))
  }
  return found
}

/** The threshold at which a cap is used up. */
export const REACHED = 1

/** The thresholds that `spent` has reached, ascending; 1 is the cap. */
export function thresholdsMet(
  limit: { amount: number; notify_at: readonly number[] },
  spent: number,
): number[] {
  const fractions = [...limit.notify_at.filter((fraction) => fraction < REACHED), REACHED]
  return fractions.filter((fraction) => spent >= Math.round(fraction * limit.amount))
}
