// The texts of waiting reasons, with placeholders for values. The API writes them in English and UTC; the console
// translates them by their keys into the reader's language and time zone.

/** The texts by key. `{n|line|lines}` is replaced by the form that the number n takes. */
export const WAITING_TEXTS = {
  paused: 'It is paused; nothing is sent until it is resumed.',
  not_before: 'It starts at {until}.',
  storage_failing:
    'The storage of the service is full or fails; nothing is sent until its operator has fixed that.',
  no_worker: 'No worker is running; nothing is sent until one does.',
  claimed: 'A worker has claimed it; its first line is sent next.',
  next: 'A worker claims it next.',
  queued:
    'Queued behind {chunks} {chunks|chunk|chunks} of {batches} other {batches|batch|batches} under way.',
  usage_limit: 'A spending limit leaves no room until lines under way have ended.',
  models_paused: 'Its models are paused; nothing is sent until that is resumed.',
  model_paused: 'The model {model} is paused; nothing is sent until that is resumed.',
  never_open: 'The hours of the model {model} never open.',
  outside_hours: 'The model {model} is outside its hours; it opens at {until}.',
  engine_starting: 'The server of the model {model} {error}',
  unreachable: 'No server of the model {model} answers{because}',
  throttled: 'The servers of the model {model} have asked to wait{because}',
  live_traffic:
    'Other requests take all of the server of the model {model}; lines are sent when it has room.',
  lines_failing: 'The servers of the model {model} fail on lines of this batch; the last error: {error}',
  others_failing:
    'The servers of the model {model} fail on lines of other batches; lines of this one are tried in between.',
  input_unreadable: 'Its input cannot be read; it is tried again until the window closes.',
  stores_failing: 'The database or the blob store did not answer; it is tried again soon.',
  parked: 'Its model was unavailable; it is tried again soon.',
  remote: 'A batch API has its lines; their results are recorded when it has finished them.',
  remote_sending: '{lines} {lines|line of it is|lines of it are} being sent to {upstream}.',
  remote_unknown:
    'It is not known yet whether {upstream} has taken {lines} {lines|line|lines} of it{because}; that is looked up before {lines|it is|they are} sent again.',
  remote_ended:
    '{upstream} has ended with {lines} {lines|line|lines} of it {where}; {lines|its result is|their results are} recorded next.',
  remote_unreadable:
    '{upstream} has ended with {lines} {lines|line|lines} of it {where}, and {lines|its result|their results} cannot be read{because}; it is tried again.',
  remote_lost:
    '{upstream} has {lines} {lines|line|lines} of it {where}, and nothing can be learned of {lines|it|them}{because}; it is tried again.',
  remote_cancelling:
    '{upstream} has {lines} {lines|line|lines} of it {where}, which is being cancelled there; what it has not answered is answered by other servers or ends with the batch.',
  remote_running:
    '{upstream} has {lines} {lines|line|lines} of it {where}{status}; {lines|its result is|their results are} recorded when it has finished {lines|it|them}.',
  /** Parts of the texts above. */
  'part.upstream': 'the batch API',
  'part.batches': 'in {remote_batches} batches',
  'part.batch': 'in a batch',
  'part.named': 'in the batch {remote_id}',
} as const

export type WaitingTextKey = keyof typeof WAITING_TEXTS

/** The key and values of a text; `values.until` is in Unix seconds. */
export interface WaitingText {
  key: string
  values: Readonly<Record<string, string | number>>
}

export function isWaitingKey(key: string): key is WaitingTextKey {
  return Object.hasOwn(WAITING_TEXTS, key) && !key.startsWith('part.')
}

/** The text with its values; `showTime` formats Unix seconds. */
export function waitingText(
  key: WaitingTextKey,
  values: WaitingText['values'],
  {
    texts = WAITING_TEXTS,
    locale = 'en',
    showTime = isoTime,
  }: {
    texts?: Readonly<Record<WaitingTextKey, string>>
    locale?: string
    showTime?: (at: number) => string
  } = {},
): string {
  const { error, status, until, upstream = texts['part.upstream'], remote_batches = 1, remote_id } = values
  const part =
    Number(remote_batches) > 1 ? 'part.batches' : remote_id === undefined ? 'part.batch' : 'part.named'
  const text = fill(
    texts[key],
    {
      ...values,
      upstream,
      where: fill(texts[part], values, locale),
      because: error === undefined ? '' : `: ${error}`,
      status: status === undefined ? '' : ` (${status})`,
      until: showTime(Number(until ?? 0)),
    },
    locale,
  )
  // A text that ends with a server's message keeps that message's punctuation.
  const whole = error === undefined && /[^.!?\u2026]$/.test(text) ? `${text}.` : text
  return whole.startsWith(texts['part.upstream']) ? whole[0]!.toUpperCase() + whole.slice(1) : whole
}

function isoTime(at: number): string {
  return new Date(at * 1000).toISOString().replace('.000Z', 'Z')
}

type Values = Readonly<Record<string, string | number>>

/** Replaces `{name}` by a value, and `{n|line|lines}` by the form that the number `n` takes. */
export function fill(message: string, values: Values, locale: string): string {
  return message.replace(
    /\{(\w+)(?:\|([^|}]*)\|([^}]*))?\}/g,
    (_, name: string, one?: string, many?: string) => {
      const value = values[name] ?? ''
      const { plural, number } = formatsOf(locale)
      if (one !== undefined && many !== undefined) return plural.select(Number(value)) === 'one' ? one : many
      return typeof value === 'number' ? number.format(value) : value
    },
  )
}

interface Formats {
  plural: Intl.PluralRules
  number: Intl.NumberFormat
}

/** The formats of the last locale: making them takes longer than many texts. */
let formats: (Formats & { locale: string }) | null = null

function formatsOf(locale: string): Formats {
  if (formats?.locale !== locale)
    formats = { locale, plural: new Intl.PluralRules(locale), number: new Intl.NumberFormat(locale) }
  return formats
}
