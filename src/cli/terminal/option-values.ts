// Parsers of option values. Commander prints an error message after "option '--x <y>' argument 'z' is invalid.".
import { type Command, InvalidArgumentError } from 'commander'
import { isScope, SCOPES, type Scope } from '../../domain/api-key.ts'

/** `--metadata k=v`, given any number of times. */
export function pairs(text: string, earlier: Record<string, string> = {}): Record<string, string> {
  const at = text.indexOf('=')
  if (at < 1) throw new InvalidArgumentError('Expected key=value.')
  return { ...earlier, [text.slice(0, at)]: text.slice(at + 1) }
}

/** `a,b,c` */
export function commaList(text: string): string[] {
  const items = text
    .split(',')
    .map((item) => item.trim())
    .filter((item) => item !== '')
  if (items.length === 0) throw new InvalidArgumentError('Expected one or more values, separated by commas.')
  return items
}

export function scopes(text: string): Scope[] {
  return commaList(text).map((item) => {
    if (!isScope(item)) throw new InvalidArgumentError(`The scopes are ${SCOPES.join(', ')}.`)
    return item
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

/** `20`, or `100..300` */
export function range(text: string): { min: number; max: number } {
  const match = /^(\d+(?:\.\d+)?)(?:\.\.(\d+(?:\.\d+)?))?$/.exec(text)
  const min = Number(match?.[1] ?? Number.NaN)
  const max = match?.[2] === undefined ? min : Number(match[2])
  if (min <= max) return { min, max }
  throw new InvalidArgumentError('Expected a number, or a range such as 100..300.')
}

/** Adds the two options of every command that reads the configuration. */
export function withConfig(command: Command): Command {
  return command
    .option('--config <file>', 'configuration file (default: offpeak.yaml if there is one)')
    .option('--data <dir>', 'data folder (default: ./offpeak-data)')
}

export function withJson(command: Command): Command {
  return command.option('--json', 'print JSON, for scripts')
}

/** Shows `lines` as examples below the help of `command`. */
export function examples(command: Command, ...lines: string[]): Command {
  return command.addHelpText('after', `\nExamples:\n${lines.map((line) => `  $ ${line}`).join('\n')}`)
}
