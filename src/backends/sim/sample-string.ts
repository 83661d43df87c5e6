// A string that a JSON Schema accepts: by its format, its pattern, its length.
import type { GenerationBudget } from './generation-budget.ts'
import type { Schema } from './merge-schemas.ts'
import { samplePattern } from './sample-pattern.ts'
import type { SeededRandom } from './seeded-random.ts'

/** Longer demands than this are not met. */
const LENGTH_MAX = 100_000

/** `pattern` is met best-effort: lookarounds and back-references are not understood. */
export function sampleString(schema: Schema, random: SeededRandom, budget: GenerationBudget): string {
  const least = typeof schema.minLength === 'number' ? Math.min(schema.minLength, LENGTH_MAX) : 0
  const most = typeof schema.maxLength === 'number' ? schema.maxLength : Number.POSITIVE_INFINITY
  budget.bytes(least)
  if (typeof schema.pattern === 'string') {
    const sample = samplePattern(schema.pattern, least, random, budget)
    if (sample !== null) {
      budget.bytes(sample.length)
      return sample
    }
  }
  if (typeof schema.format === 'string') {
    const sample = sampleFormat(schema.format, random)
    if (sample !== null) return sample
  }
  const text = `simulated ${random.next().toString(36)}`
  const long = text.length >= least ? text : text.padEnd(least, ' simulated')
  return long.length <= most ? long : long.slice(0, most)
}

function sampleFormat(format: string, random: SeededRandom): string | null {
  const two = (min: number, max: number): string => String(random.between(min, max)).padStart(2, '0')
  const hex = (length: number): string =>
    Array.from({ length }, () => random.between(0, 15).toString(16)).join('')
  const date = (): string => `20${two(10, 39)}-${two(1, 12)}-${two(1, 28)}`
  const time = (): string => `${two(0, 23)}:${two(0, 59)}:${two(0, 59)}Z`
  switch (format) {
    case 'date-time':
      return `${date()}T${time()}`
    case 'date':
      return date()
    case 'time':
      return time()
    case 'duration':
      return `PT${random.between(1, 59)}M`
    case 'email':
    case 'idn-email':
      return `simulated.${hex(6)}@example.com`
    case 'hostname':
    case 'idn-hostname':
      return `host-${hex(4)}.example.com`
    case 'ipv4':
      return `192.0.2.${random.between(1, 254)}`
    case 'ipv6':
      return `2001:db8::${random.between(1, 9999)}`
    case 'uri':
    case 'url':
    case 'iri':
    case 'uri-reference':
    case 'iri-reference':
      return `https://example.com/${hex(8)}`
    case 'uuid':
      return `${hex(8)}-${hex(4)}-4${hex(3)}-a${hex(3)}-${hex(12)}`
    case 'json-pointer':
      return `/${hex(4)}`
    case 'regex':
      return `^${hex(4)}$`
  }
  return null
}
