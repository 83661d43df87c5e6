// The text that inserts the cost into a model's answer. The other bytes of the answer stay unchanged; parsing and
// printing it would change numbers, escapes and the order of keys.
import type { CostPlace } from '../jsonl/answer-scan.ts'

/** `text` replaces the answer's bytes from `start` to `end`. */
export interface Splice {
  start: number
  end: number
  text: string
}

/** `usageLiteral` is used where the answer has no `usage` object: `{"prompt_tokens":…}` without `cost_usd`. */
export function spliceCost(place: CostPlace, costLiteral: string, usageLiteral: string): Splice {
  return { start: place.start, end: place.end, text: textFor(place, costLiteral, usageLiteral) }
}

function textFor({ kind, comma }: CostPlace, cost: string, usage: string): string {
  if (kind === 'cost') return cost
  const before = comma ? ',' : ''
  if (kind === 'member') return `${before}"cost_usd":${cost}`
  const whole = `${usage.slice(0, -1)},"cost_usd":${cost}}`
  return kind === 'usage' ? whole : `${before}"usage":${whole}`
}
