// What limits count: money and tokens, side by side, both whole numbers.
import type { LimitMetric } from './limit.ts'

export interface Spend {
  cost_nanos: number
  tokens: number
}

export const NO_SPEND: Readonly<Spend> = Object.freeze({ cost_nanos: 0, tokens: 0 })

export function plus(a: Spend, b: Spend): Spend {
  return { cost_nanos: atMost(a.cost_nanos + b.cost_nanos), tokens: atMost(a.tokens + b.tokens) }
}

/** Adds in place, for sums over many lines. */
export function grow(sum: Spend, by: Spend): void {
  sum.cost_nanos = atMost(sum.cost_nanos + by.cost_nanos)
  sum.tokens = atMost(sum.tokens + by.tokens)
}

/** Never below nothing. */
export function minus(a: Spend, b: Spend): Spend {
  return {
    cost_nanos: Math.max(0, a.cost_nanos - b.cost_nanos),
    tokens: Math.max(0, a.tokens - b.tokens),
  }
}

export function isNothing(spend: Spend): boolean {
  return spend.cost_nanos === 0 && spend.tokens === 0
}

/** As much of it as a limit on `metric` counts: nano-dollars or tokens. */
export function counted(spend: Spend, metric: LimitMetric): number {
  return metric === 'cost_usd' ? spend.cost_nanos : spend.tokens
}

/** Adds to what is kept under `key`. */
export function addSpend<K>(sums: Map<K, Spend>, key: K, spend: Spend): void {
  sums.set(key, plus(sums.get(key) ?? NO_SPEND, spend))
}

/** Sums stay exact integers even for requests of absurd size. */
function atMost(units: number): number {
  return Math.min(units, Number.MAX_SAFE_INTEGER)
}
