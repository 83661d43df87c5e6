// The amounts that limits count: money and tokens, both whole numbers.
import type { LimitMetric } from './limit.ts'

export interface Spend {
  cost_nanos: number
  tokens: number
}

export const NO_SPEND: Readonly<Spend> = Object.freeze({ cost_nanos: 0, tokens: 0 })

export function plus(a: Spend, b: Spend): Spend {
  return { cost_nanos: sumOf(a.cost_nanos, b.cost_nanos), tokens: sumOf(a.tokens, b.tokens) }
}

/** Adds in place, for sums over many lines. */
export function addInPlace(sum: Spend, by: Spend): void {
  sum.cost_nanos = sumOf(sum.cost_nanos, by.cost_nanos)
  sum.tokens = sumOf(sum.tokens, by.tokens)
}

/** Never below zero. */
export function minus(a: Spend, b: Spend): Spend {
  return {
    cost_nanos: Math.max(0, a.cost_nanos - b.cost_nanos),
    tokens: Math.max(0, a.tokens - b.tokens),
  }
}

export function isZero(spend: Spend): boolean {
  return spend.cost_nanos === 0 && spend.tokens === 0
}

/** The amount that a limit on `metric` counts: nano-dollars or tokens. */
export function counted(spend: Spend, metric: LimitMetric): number {
  return metric === 'cost_usd' ? spend.cost_nanos : spend.tokens
}

/** Adds to the sum of `key`. */
export function addSpend<K>(sums: Map<K, Spend>, key: K, spend: Spend): void {
  sums.set(key, plus(sums.get(key) ?? NO_SPEND, spend))
}

// Saturating sums: whole numbers that stop at 2^53 - 1, the largest number that JavaScript, JSON and every database
// represent exactly. A database would reject a larger sum, and with it every other result of the same commit.
//
// For counts that are not negative the order of additions makes no difference.

export const COUNT_MAX = Number.MAX_SAFE_INTEGER

/** `count`, or the largest count if it is larger. */
export function atMost(count: number): number {
  return Math.min(count, COUNT_MAX)
}

/** The sum of counts, and of changes of counts. */
export function sumOf(a: number, b: number): number {
  return Math.max(-COUNT_MAX, atMost(a + b))
}
