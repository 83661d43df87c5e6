// All problems of a configuration at once, so that the operator can fix them together.
import { withoutUrlSecrets } from '../domain/secret-text.ts'

/** Thrown before anything is started; its message is meant for the operator and holds no secrets. */
export class ConfigError extends Error {
  /** One sentence each, beginning with the place: file and line, variable or flag, then the key. */
  readonly problems: readonly string[]

  constructor(problems: readonly string[]) {
    super(
      problems.length === 1
        ? `The configuration is wrong: ${problems[0]}`
        : `The configuration is wrong in ${problems.length} places:\n${problems.map((p) => `  ${p}`).join('\n')}`,
    )
    this.name = 'ConfigError'
    this.problems = problems
  }
}

/** A value as a message may show it: short, and without the secrets of a URL. */
export function shown(value: unknown): string {
  if (value === null || value === undefined) return 'nothing'
  if (Array.isArray(value)) return 'a list'
  if (typeof value === 'object') return 'a map of keys'
  if (typeof value !== 'string') return String(value)
  // A URL may be wrong for want of its scheme.
  const isBare = !value.includes('://') && /[@?]/.test(value)
  const open = isBare ? withoutUrlSecrets(`://${value}`).slice('://'.length) : withoutUrlSecrets(value)
  return JSON.stringify(open.length > 80 ? `${open.slice(0, 79)}…` : open)
}
