// The error for a reached limit: in the caller's language, with amounts and dates in its format, and with fields for
// programs.
import { IntlMessageFormat } from 'intl-messageformat'
import { unixSeconds } from '../domain/clock.ts'
import { ApiError, type WireError, wireError } from '../domain/errors.ts'
import { LANGUAGES, type Language } from '../domain/language.ts'
import { WHOLE_PROJECT } from '../domain/limit.ts'
import { usd } from '../domain/money.ts'
import type { Counter } from './counters.ts'
import { LIMIT_MESSAGES, type LimitMessages } from './limit-messages.ts'

/** A nano-dollar has nine decimals. */
const USD_DIGITS_MAX = 9

/** A line that was not sent. `projected` is its projected spend, in the limit's unit. */
export function lineLimitError(counter: Counter, projected: number, language: Language): WireError {
  return wireError(
    'usage_limit_exceeded',
    message('reached', counter, { projected }, language),
    details(counter),
  )
}

/** A batch that is not created. `projected` is its projected spend, `projectedOpen` that of the project's open batches. */
export function batchLimitError(
  counter: Counter,
  { projected, projectedOpen }: { projected: number; projectedOpen: number },
  language: Language,
  now: number,
): ApiError {
  return new ApiError(
    'usage_limit_exceeded',
    message('would_exceed', counter, { projected, projectedOpen }, language),
    details(counter),
    Math.max(1, Math.ceil((counter.window.end - now) / 1000)),
    language,
  )
}

/** English for a batch of an earlier version, which did not record the language. */
export function languageOf(text: string | null): Language {
  return LANGUAGES.find((language) => language === text) ?? 'en'
}

function details({ limit, window }: Counter) {
  return { limit_id: limit.id, resets_at: unixSeconds(window.end) }
}

function message(
  kind: 'would_exceed' | 'reached',
  { limit, spender, window, spent }: Counter,
  units: Readonly<Record<string, number>>,
  language: Language,
): string {
  const shown = (value: number): string =>
    limit.metric === 'cost_usd' ? dollars(value, language) : tokens(value, language)
  const amounts = Object.entries({ ...units, spent, amount: limit.amount })
  const text = format(language, kind, {
    ...Object.fromEntries(amounts.map(([name, value]) => [name, shown(value)])),
    scope: spender === WHOLE_PROJECT ? 'project' : 'entity',
    spender,
    window: limit.window,
    metric: limit.metric,
    resets: date(window.end, language),
  })
  const { description } = limit
  return description === null ? text : format(language, 'described', { message: text, description })
}

const formats = new Map<string, IntlMessageFormat>()

function format(
  language: Language,
  kind: keyof LimitMessages,
  values: Readonly<Record<string, string | number>>,
): string {
  const key = `${language} ${kind}`
  const compiled = formats.get(key) ?? new IntlMessageFormat(LIMIT_MESSAGES[language][kind], language)
  formats.set(key, compiled)
  return String(compiled.format(values))
}

function dollars(nanos: number, language: Language): string {
  return formatters(language).dollars.format(usd(nanos))
}

function tokens(count: number, language: Language): string {
  return format(language, 'tokens', { count })
}

function date(at: number, language: Language): string {
  return formatters(language).date.format(at)
}

/** Cached: creating a formatter is slow, and one cap may end a million lines. */
const known = new Map<Language, { dollars: Intl.NumberFormat; date: Intl.DateTimeFormat }>()

function formatters(language: Language) {
  const made = known.get(language) ?? {
    dollars: new Intl.NumberFormat(language, {
      style: 'currency',
      currency: 'USD',
      minimumFractionDigits: 2,
      maximumFractionDigits: USD_DIGITS_MAX,
    }),
    date: new Intl.DateTimeFormat(language, {
      year: 'numeric',
      month: 'long',
      day: 'numeric',
      hour: '2-digit',
      minute: '2-digit',
      timeZone: 'UTC',
      timeZoneName: 'short',
    }),
  }
  known.set(language, made)
  return made
}
