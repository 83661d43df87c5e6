// The error for a reached limit: in the caller's language, with amounts and dates in its format, and with fields for
// programs.
import { IntlMessageFormat } from 'intl-messageformat'
import { unixSeconds } from '../domain/clock.ts'
import { ApiError, type WireError, wireError } from '../domain/errors.ts'
import { WHOLE_PROJECT, WINDOWS } from '../domain/limit.ts'
import { usd } from '../domain/money.ts'
import type { Counter } from './counters.ts'

/** The decimals of a nano-dollar in USD. */
const USD_DIGITS_MAX = 9

/**
 * The error of a line that is not sent, or not again. `projected`: its projected spend, in the limit's unit; `wasSent`:
 * it had attempts that no server answered.
 */
export function lineLimitError(
  counter: Counter,
  projected: number,
  wasSent: boolean,
  language: Language,
): WireError {
  return wireError(
    'usage_limit_exceeded',
    message('reached', counter, { projected }, language, wasSent),
    details(counter),
  )
}

/** The error of a batch that is not created, with its `projected` spend and that of the project's open batches. */
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

/** The language in a batch's row; English by default. */
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
  wasSent = false,
): string {
  const { dollars, date } = formatters(language)
  const { metric, scope, model } = limit
  const shown = (value: number): string =>
    metric === 'cost_usd' ? dollars.format(usd(value)) : format(language, metric, { count: value })
  const name = scope === 'key' ? limit.subject : scope === 'model' ? model : spender
  const isOnModel = scope !== 'model' && model !== ''
  const owner = {
    scope: spender === WHOLE_PROJECT ? scope : 'entity',
    name,
    on: isOnModel ? 'model' : 'all',
    model,
  }
  const amounts = Object.entries({ ...units, spent, amount: limit.amount })
  const text = format(language, kind, {
    ...Object.fromEntries(amounts.map(([name, value]) => [name, shown(value)])),
    owner: format(language, 'owner', owner),
    window: WINDOWS[limit.window].words[language],
    metric,
    n: metric === 'cost_usd' ? usd(spent) : spent,
    sent: wasSent ? 'again' : 'never',
    resets: date.format(window.end),
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

/** Formatters by language: creating one is slow, and one cap may end a million lines. */
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

/**
 * The texts of limit errors in every language, as ICU messages. Amounts are formatted before they are inserted.
 */
interface LimitMessages {
  /** The text at creation: the batch may exceed the cap. */
  would_exceed: string
  /** The text during a run: the line may exceed the cap. */
  reached: string
  /** The owner of the spend, for insertion into the other texts. */
  owner: string
  /** The message with the limit's description appended. */
  described: string
  tokens: string
  requests: string
}

const LIMIT_MESSAGES: Readonly<Record<Language, LimitMessages>> = {
  en: {
    would_exceed:
      'This batch may use up to {projected}, which the {window} limit of {amount} for {owner} does not allow: {spent} {metric, select, cost_usd {is spent} other {{n, plural, one {is} other {are}} used}} and {projectedOpen} may be needed for work under way. The limit resets on {resets}.',
    reached:
      'The {window} limit of {amount} for {owner} is reached: {spent} {metric, select, cost_usd {is spent} other {{n, plural, one {is} other {are}} used}}, and this line may need up to {projected}. It was {sent, select, again {sent without an answer, is not sent again} other {not sent}} and is not billed. The limit resets on {resets}.',
    owner:
      '{scope, select, project {this project} key {the key “{name}”} model {the model “{name}”} other {“{name}”}}{on, select, model { on the model “{model}”} other {}}',
    described: '{message} ({description})',
    tokens: '{count, plural, one {# token} other {# tokens}}',
    requests: '{count, plural, one {# request} other {# requests}}',
  },
  de: {
    would_exceed:
      'Dieser Batch kann bis zu {projected} verbrauchen; das {window} von {amount} für {owner} lässt das nicht zu: {spent} {n, plural, one {ist} other {sind}} verbraucht, und laufende Arbeit kann {projectedOpen} benötigen. Das Limit wird am {resets} zurückgesetzt.',
    reached:
      'Das {window} von {amount} für {owner} ist erreicht: {spent} {n, plural, one {ist} other {sind}} verbraucht, und diese Zeile kann bis zu {projected} benötigen. Sie wurde {sent, select, again {ohne Antwort gesendet, wird nicht erneut gesendet} other {nicht gesendet}} und wird nicht berechnet. Das Limit wird am {resets} zurückgesetzt.',
    owner:
      '{scope, select, project {dieses Projekt} key {den Schlüssel „{name}“} model {das Modell „{name}“} other {„{name}“}}{on, select, model { mit dem Modell „{model}“} other {}}',
    described: '{message} ({description})',
    tokens: '{count, plural, one {# Token} other {# Tokens}}',
    requests: '{count, plural, one {# Anfrage} other {# Anfragen}}',
  },
  es: {
    would_exceed:
      'Este lote puede consumir hasta {projected} y el límite {window} de {amount} para {owner} no lo permite: ya se {n, plural, one {ha} other {han}} consumido {spent} y el trabajo en curso puede necesitar {projectedOpen}. El límite se restablece el {resets}.',
    reached:
      'Se ha alcanzado el límite {window} de {amount} para {owner}: ya se {n, plural, one {ha} other {han}} consumido {spent} y esta línea puede necesitar hasta {projected}. {sent, select, again {Se envió sin obtener respuesta, no se envía de nuevo} other {No se ha enviado}} y no se factura. El límite se restablece el {resets}.',
    owner:
      '{scope, select, project {este proyecto} key {la clave «{name}»} model {el modelo «{name}»} other {«{name}»}}{on, select, model { con el modelo «{model}»} other {}}',
    described: '{message} ({description})',
    tokens: '{count, plural, one {# token} other {# tokens}}',
    requests: '{count, plural, one {# solicitud} other {# solicitudes}}',
  },
  fr: {
    would_exceed:
      'Ce lot peut consommer jusqu’à {projected}, ce que la limite {window} de {amount} pour {owner} ne permet pas : {spent} {n, plural, one {a} other {ont}} été {metric, select, requests {{n, plural, one {consommée} other {consommées}}} other {{n, plural, one {consommé} other {consommés}}}} et le travail en cours peut nécessiter {projectedOpen}. La limite sera réinitialisée le {resets}.',
    reached:
      'La limite {window} de {amount} pour {owner} est atteinte : {spent} {n, plural, one {a} other {ont}} été {metric, select, requests {{n, plural, one {consommée} other {consommées}}} other {{n, plural, one {consommé} other {consommés}}}} et cette ligne peut nécessiter jusqu’à {projected}. Elle {sent, select, again {a été envoyée sans obtenir de réponse, n’est pas renvoyée} other {n’a pas été envoyée}} et n’est pas facturée. La limite sera réinitialisée le {resets}.',
    owner:
      '{scope, select, project {ce projet} key {la clé « {name} »} model {le modèle « {name} »} other {« {name} »}}{on, select, model { avec le modèle « {model} »} other {}}',
    described: '{message} ({description})',
    tokens: '{count, plural, one {# jeton} other {# jetons}}',
    requests: '{count, plural, one {# requête} other {# requêtes}}',
  },
  ja: {
    would_exceed:
      'このバッチは最大{projected}を使用する可能性があり、{owner}の{window}あたりの上限{amount}を超えます。使用済みは{spent}、実行中の処理に必要となりうる量は{projectedOpen}です。上限は{resets}にリセットされます。',
    reached:
      '{owner}の{window}あたりの上限{amount}に達しました。使用済みは{spent}で、この行には最大{projected}が必要です。この行は{sent, select, again {送信されましたが応答がなく、再送信されません。} other {送信されておらず、}}課金されません。上限は{resets}にリセットされます。',
    owner:
      '{scope, select, project {このプロジェクト} key {キー「{name}」} model {モデル「{name}」} other {「{name}」}}{on, select, model {のモデル「{model}」} other {}}',
    described: '{message}({description})',
    tokens: '{count, number}トークン',
    requests: '{count, number}件のリクエスト',
  },
  zh: {
    would_exceed:
      '此批次最多可能使用{projected},超出了{owner}的{window}限额{amount}:已使用{spent},正在进行的工作可能还需要{projectedOpen}。限额将于{resets}重置。',
    reached:
      '{owner}的{window}限额{amount}已用尽:已使用{spent},此行最多可能需要{projected}。此行{sent, select, again {已发送但未收到回答,不会再次发送} other {未发送}},也不会计费。限额将于{resets}重置。',
    owner:
      '{scope, select, project {本项目} key {密钥“{name}”} model {模型“{name}”} other {“{name}”}}{on, select, model {使用模型“{model}”} other {}}',
    described: '{message}({description})',
    tokens: '{count, number}个令牌',
    requests: '{count, number}个请求',
  },
}

// The languages of limit errors, and the choice among them for a caller.

export const LANGUAGES = ['en', 'de', 'es', 'fr', 'ja', 'zh'] as const
export type Language = (typeof LANGUAGES)[number]

/** Script and regions of traditional Chinese (RFC 5646 subtags). */
const TRADITIONAL = ['hant', 'tw', 'hk', 'mo']

/** The best language for an Accept-Language header (RFC 9110 §12.5.4): highest weight, then first; else English. */
export function negotiateLanguage(header: string | undefined): Language {
  let best: { language: Language; weight: number } = { language: 'en', weight: 0 }
  for (const range of (header ?? '').slice(0, 1000).split(',')) {
    const [tag = '', ...parameters] = range.split(';').map((part) => part.trim().toLowerCase())
    const [primary, ...subtags] = tag.split('-')
    // Only simplified Chinese is available: a reader of traditional Chinese gets the next choice.
    const isTraditional =
      primary === 'zh' && !subtags.includes('hans') && subtags.some((subtag) => TRADITIONAL.includes(subtag))
    const language = isTraditional ? undefined : LANGUAGES.find((available) => available === primary)
    const weight = weightOf(parameters)
    if (language !== undefined && weight > best.weight) best = { language, weight }
  }
  return best.language
}

function weightOf(parameters: readonly string[]): number {
  const q = parameters.find((parameter) => parameter.startsWith('q='))
  if (q === undefined) return 1
  const weight = Number(q.slice(2))
  return weight >= 0 && weight <= 1 ? weight : 0
}
