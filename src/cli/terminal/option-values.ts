// Parses the values of options. Commander prints an error message after "option '--x <y>' argument 'z' is invalid.".

import { type Command, InvalidArgumentError, Option } from 'commander'
import { REASK_MODES, REASKS_MAX, type Reask } from '../../domain/batch.ts'
import { systemClock } from '../../domain/clock.ts'
import { durationMs, parseDay } from '../../domain/days.ts'
import type { RetentionTexts } from '../../domain/retention.ts'

export const WINDOW_HELP = 'completion window (default: the longest of the plan)'

/** The fields of a new batch that have command-line options. */
export interface BatchTerms {
  /** The earliest start of the batch in Unix seconds. */
  start_after?: number
  dedupe?: true | 'force'
  reask?: Reask
  order?: 'file'
  retention?: RetentionTexts
}

/** The option of each field, and the name of its value. */
const TERMS = {
  start_after: ['notBefore', notBeforeOption],
  dedupe: ['dedupe', dedupeOption],
  reask: ['reask', reaskOption],
  order: ['order', orderOption],
  retention: ['retention', retentionOption],
} as const satisfies Record<keyof BatchTerms, readonly [flag: keyof BatchFlags, option: () => Option]>

/** The names of the fields that have an option of their own. */
export const TERM_NAMES = Object.keys(TERMS)

/** The options of a batch, whatever its input is. */
export interface BatchFlags extends Omit<BatchTerms, 'start_after'> {
  window?: string
  metadata?: Record<string, string>
  name?: string
  entity?: string
  notBefore?: number
  /** The terms of an earlier run, which apply where no option sets another. */
  earlier?: BatchTerms
}

/** The fields of a batch from its options. */
export function termsOf(flags: BatchFlags): BatchTerms {
  const given = Object.entries(TERMS).map(([name, [flag]]) => ({ [name]: flags[flag] }))
  return Object.assign({}, flags.earlier, ownTerms(Object.assign({}, ...given)))
}

/** The fields of a batch that are set. */
export function ownTerms(among: BatchTerms): BatchTerms {
  const set = Object.entries(among).filter(([name, value]) => name in TERMS && value !== undefined)
  return Object.fromEntries(set)
}

export function withBatchTerms(command: Command): Command {
  command.option('--window <duration>', WINDOW_HELP)
  for (const [, option] of Object.values(TERMS)) command.addOption(option())
  return command
    .option('--metadata <key=value>', 'a pair of metadata for the batch; may be repeated', pairsOf(String))
    .option('--name <text>', 'the name of the batch (default: that of the file); short for --metadata name=…')
    .option('--entity <type:id>', 'entity to attribute usage to; short for --metadata entity=…')
}

export function metadataOf({ metadata, name, entity }: BatchFlags): Record<string, string> {
  return {
    ...metadata,
    ...(name === undefined ? {} : { name }),
    ...(entity === undefined ? {} : { entity }),
  }
}

/** Parses `key=value`, given any number of times. `read`: parses a value. */
export function pairsOf<T>(read: (value: string, key: string) => T) {
  return (text: string, earlier: Record<string, T> = {}): Record<string, T> => {
    const at = text.indexOf('=')
    if (at < 1) throw new InvalidArgumentError('Expected key=value.')
    const key = text.slice(0, at)
    return { ...earlier, [key]: read(text.slice(at + 1), key) }
  }
}

/** Parses a list of values such as `a,b,c`. */
export function commaList(text: string): string[] {
  const items = text
    .split(',')
    .map((item) => item.trim())
    .filter((item) => item !== '')
  if (items.length === 0) throw new InvalidArgumentError('Expected one or more values, separated by commas.')
  return items
}

function notBeforeOption(): Option {
  const text = 'send nothing before, such as 2026-01-31T20:00Z, 20:00 or +2h'
  return new Option('--not-before <time>', text).argParser(pointInTime)
}

function dedupeOption(): Option {
  const text = 'send identical requests once if their answer is repeatable; with force, whatever they are'
  return new Option('--dedupe [force]', text).argParser((value): BatchTerms['dedupe'] => {
    if (value === 'force') return value
    throw new InvalidArgumentError('Expected force or nothing; put other arguments before --dedupe.')
  })
}

function orderOption(): Option {
  const text = 'file: send lines in the order of the file, not those that begin alike one after the other'
  return new Option('--order <file>', text).choices(['file'])
}

export function retentionOption(): Option {
  const text =
    'destroy results so long after they were fetched, such as 0h, and the input with its batch; the second, after a comma, is how long they wait for that (default: 1d)'
  return new Option('--retention <results[,grace]>', text).argParser((value): RetentionTexts => {
    const [results = '', grace, ...more] = value.split(',')
    if (more.length === 0 && [results, grace ?? results].every((one) => durationMs(one) !== null))
      return { results, ...(grace !== undefined && { grace }) }
    throw new InvalidArgumentError('Expected a duration such as 0h or 10m, or two such as 0h,4h.')
  })
}

function reaskOption(): Option {
  const text =
    'ask again, so often at most, for an answer that misses its schema or is cut off; with :repair the model sees what is wrong'
  return new Option('--reask <max[:mode]>', text).argParser((value): Reask => {
    const [max = '', mode = 'repeat'] = value.split(':')
    const found = REASK_MODES.find((name) => name === mode)
    if (/^[1-9]$/.test(max) && Number(max) <= REASKS_MAX && found !== undefined)
      return { max: Number(max), mode: found }
    throw new InvalidArgumentError(
      `Expected a number from 1 to ${REASKS_MAX}, and maybe ${REASK_MODES.map((name) => `:${name}`).join(' or ')}.`,
    )
  })
}

/** Parses some of `names`; `wrong` is the message that lists them. */
export function someOf<T extends string>(names: readonly T[], wrong: string): (text: string) => T[] {
  return (text) =>
    commaList(text).map((item) => {
      const found = names.find((name) => name === item)
      if (found === undefined) throw new InvalidArgumentError(`${wrong} ${names.join(', ')}.`)
      return found
    })
}

export function wholeNumber(min: number, max = Number.MAX_SAFE_INTEGER): (text: string) => number {
  return (text) => {
    const value = /^\d+$/.test(text) ? Number(text) : Number.NaN
    if (value >= min && value <= max) return value
    const bound = max === Number.MAX_SAFE_INTEGER ? `${min} or more` : `from ${min} to ${max}`
    throw new InvalidArgumentError(`Expected a whole number, ${bound}.`)
  }
}

export function fraction(text: string): number {
  const value = /^\d*\.?\d+$/.test(text) ? Number(text) : Number.NaN
  if (value >= 0 && value <= 1) return value
  throw new InvalidArgumentError('Expected a fraction from 0 to 1.')
}

/** Parses a range such as `100..300`, or one number. */
export function range(text: string): { min: number; max: number } {
  const match = /^(\d+(?:\.\d+)?)(?:\.\.(\d+(?:\.\d+)?))?$/.exec(text)
  const min = Number(match?.[1] ?? Number.NaN)
  const max = match?.[2] === undefined ? min : Number(match[2])
  if (min <= max) return { min, max }
  throw new InvalidArgumentError('Expected a number, or a range such as 100..300.')
}

/** Parses a time to Unix seconds: an ISO time, a time of the day (the next one here), or from now (`+2h`). */
export function pointInTime(text: string): number {
  const now = systemClock.now()
  const fromNow = text.startsWith('+') ? durationMs(text.slice(1)) : null
  if (fromNow !== null) return Math.ceil((now + fromNow) / 1000)
  const [, hours, minutes] = /^([01]?\d|2[0-3]):([0-5]\d)$/.exec(text) ?? []
  if (hours !== undefined) {
    const day = new Date(now)
    day.setHours(Number(hours), Number(minutes), 0, 0)
    if (day.getTime() <= now) day.setDate(day.getDate() + 1)
    return Math.floor(day.getTime() / 1000)
  }
  const [, date = '', rest = ''] = /^(\d{4}-\d\d-\d\d)(.*)$/.exec(text) ?? []
  // A local day, like times without a zone; Date.parse would take it for one in UTC.
  const at = parseDay(date) === null ? Number.NaN : Date.parse(`${date}${rest || 'T00:00'}`)
  if (!Number.isNaN(at)) return Math.floor(at / 1000)
  throw new InvalidArgumentError('Expected a time such as 2026-01-31T20:00Z, 20:00 or +2h.')
}

/** Adds the two options of every command that reads the configuration. */
export function withUpstream(command: Command): Command {
  return command
    .option('--upstream <url>', 'use every model that this OpenAI-compatible server lists')
    .option('--upstream-key-env <name>', 'the variable that holds the API key of that server')
}

export function withConfig(command: Command): Command {
  return command
    .option('--config <file>', 'configuration file (default: offpeak.yaml if there is one)')
    .option('--data <dir>', 'data folder (default: ./offpeak-data)')
}

export function withJson(command: Command): Command {
  return command.option('--json', 'print JSON, for scripts')
}

/** Adds a command that reads the configuration, and prints JSON where asked. */
export function jsonCommand(parent: Command, name: string, description: string): Command {
  return withConfig(withJson(parent.command(name).description(description)))
}

/** Shows `lines` as examples below the help of `command`. */
export function examples(command: Command, ...lines: string[]): Command {
  return command.addHelpText('after', `\nExamples:\n${lines.map((line) => `  $ ${line}`).join('\n')}`)
}
