// Money is integer nano-dollars (1 USD = 10^9), so sums are exact in any order. A price is integer
// pico-dollars per token (1 USD per million tokens = 10^6), so that prices with six decimals stay exact,
// and each line is rounded once, half up, to a whole nano-dollar.
import { recordOf } from './json-record.ts'
import type { LimitMetric } from './limit.ts'

export const NANOS_PER_USD = 1_000_000_000
const PICOS_PER_NANO = 1000

/** Prices of tokens, in pico-dollars per token. Absent: prompt tokens of that kind cost as much as others. */
export interface Rates {
  input_picos: number
  output_picos: number
  /** The price of prompt tokens that the server took from its cache. */
  cached_input_picos?: number | undefined
  /** The price of prompt tokens that the server wrote to its cache. */
  cache_write_picos?: number | undefined
  /** The price of writes that it keeps for an hour; absent: as much as other writes. */
  cache_write_1h_picos?: number | undefined
}

/** A price of a model. */
export interface Price extends Rates {
  /** The rates of requests with longer prompts, the shortest of them first. Each step has all rates that hold there. */
  above?: readonly PriceStep[] | undefined
  /** By the service tier that an answer names, the rates that hold instead, whatever the length of the prompt. */
  service_tiers?: ReadonlyMap<string, Rates> | undefined
}

interface PriceStep extends Rates {
  /** Prompts of more tokens have these rates, for all tokens of the request. */
  prompt_tokens: number
}

export const FREE: Price = { input_picos: 0, output_picos: 0 }

/** Tokens of a prompt: taken from the server's cache, written to it, and of those the ones that it keeps for an hour. */
export const PROMPT_PARTS = ['cached_tokens', 'cache_write_tokens', 'cache_write_1h_tokens'] as const
/** Tokens of a completion: those that the model thought with. */
export const COMPLETION_PARTS = ['reasoning_tokens'] as const
export const TOKEN_PARTS = [...PROMPT_PARTS, ...COMPLETION_PARTS] as const
const TOKEN_COUNTS = ['prompt_tokens', 'completion_tokens', 'total_tokens', ...TOKEN_PARTS] as const

/** Parts of a usage; absent: none. */
export type TokenParts = Partial<Record<(typeof TOKEN_PARTS)[number], number | undefined>>

export interface TokenUsage extends TokenParts {
  prompt_tokens: number
  completion_tokens: number
  total_tokens: number
}

/** Each part that there is, no more than the tokens that it is a part of. */
export function partsWithin(
  { prompt_tokens, completion_tokens }: Pick<TokenUsage, 'prompt_tokens' | 'completion_tokens'>,
  { cached_tokens = 0, cache_write_tokens = 0, cache_write_1h_tokens = 0, reasoning_tokens = 0 }: TokenParts,
): TokenParts {
  const written = Math.min(cache_write_tokens, prompt_tokens)
  // A token is not both read and written; writing is dearer.
  const cached = Math.min(cached_tokens, prompt_tokens - written)
  return {
    ...(cached > 0 && { cached_tokens: cached }),
    ...(written > 0 && { cache_write_tokens: written }),
    ...(cache_write_1h_tokens > 0 && { cache_write_1h_tokens: Math.min(cache_write_1h_tokens, written) }),
    ...(reasoning_tokens > 0 && { reasoning_tokens: Math.min(reasoning_tokens, completion_tokens) }),
  }
}

export const NO_TOKENS: TokenUsage = { prompt_tokens: 0, completion_tokens: 0, total_tokens: 0 }

export function addTokens(a: TokenUsage, b: TokenUsage): TokenUsage {
  return recordOf(TOKEN_COUNTS, (name) => sumOf(a[name] ?? 0, b[name] ?? 0))
}

/** USD per million tokens (as configured) to pico-dollars per token; throws a RangeError when the number is not a price. */
export function picosPerToken(usdPerMtok: number): number {
  const picos = Math.round(usdPerMtok * 1_000_000)
  if (!Number.isSafeInteger(picos) || picos < 0)
    throw new RangeError(`${usdPerMtok} is not a price per million tokens`)
  return picos
}

/** The rates of a request whose prompt has so many tokens; `service_tier`: that of its answer, if it names one. */
export function ratesAt(price: Price, prompt_tokens: number, service_tier: string | null = null): Rates {
  const ofTier = service_tier === null ? undefined : price.service_tiers?.get(service_tier)
  return ofTier ?? price.above?.findLast((step) => prompt_tokens > step.prompt_tokens) ?? price
}

/**
 * A price at which any tokens cost no less than at each of `prices`, whatever the kind of the prompt's tokens, and a longer
 * prompt no less than a shorter one; FREE if there are none.
 */
export function dearest(prices: readonly Price[]): Price {
  const steps = prices.flatMap(({ above = [] }) => above)
  const tiers = prices.flatMap(({ service_tiers }) => [...(service_tiers?.values() ?? [])])
  const most = (prompt_tokens: number): Rates => {
    const rates = [...prices, ...tiers, ...steps.filter((step) => step.prompt_tokens <= prompt_tokens)]
    return {
      input_picos: Math.max(0, ...rates.map(inputPicosMax)),
      output_picos: Math.max(0, ...rates.map(({ output_picos }) => output_picos)),
    }
  }
  const bounds = [...new Set(steps.map(({ prompt_tokens }) => prompt_tokens))].sort((a, b) => a - b)
  const above = bounds.map((prompt_tokens) => ({ prompt_tokens, ...most(prompt_tokens) }))
  return above.length === 0 ? most(0) : { ...most(0), above }
}

function inputPicosMax(rates: Rates): number {
  const { input_picos, cached_input_picos = 0, cache_write_picos = 0, cache_write_1h_picos = 0 } = rates
  return Math.max(input_picos, cached_input_picos, cache_write_picos, cache_write_1h_picos)
}

/** Whether a prompt of some length costs more at one of two prices that projections use than at the other. */
export function isDearer(one: Price, other: Price): boolean {
  const lengths = [0, ...(one.above ?? []).map(({ prompt_tokens }) => prompt_tokens + 1)]
  return lengths.some((length) => {
    const [a, b] = [ratesAt(one, length), ratesAt(other, length)]
    return a.input_picos > b.input_picos || a.output_picos > b.output_picos
  })
}

const NO_PARTS: TokenParts = {}

/** The cost of one line, in nano-dollars; at most the largest exact number. `parts`: those of the prompt with their own rates. */
export function costNanos(
  prompt_tokens: number,
  completion_tokens: number,
  rates: Rates,
  parts = NO_PARTS,
): number {
  const { input_picos, output_picos, cached_input_picos = input_picos } = rates
  const { cache_write_picos = input_picos, cache_write_1h_picos = cache_write_picos } = rates
  const { cached_tokens = 0, cache_write_tokens = 0, cache_write_1h_tokens = 0 } = parts
  const plain_tokens = prompt_tokens - cached_tokens - cache_write_tokens
  const picos =
    plain_tokens * input_picos +
    cached_tokens * cached_input_picos +
    (cache_write_tokens - cache_write_1h_tokens) * cache_write_picos +
    cache_write_1h_tokens * cache_write_1h_picos +
    completion_tokens * output_picos
  // Every line comes here: only amounts that are not exact are made of parts.
  if (Number.isSafeInteger(picos)) return Math.floor((picos + PICOS_PER_NANO / 2) / PICOS_PER_NANO)
  const amounts = [
    [plain_tokens, input_picos],
    [cached_tokens, cached_input_picos],
    [cache_write_tokens - cache_write_1h_tokens, cache_write_picos],
    [cache_write_1h_tokens, cache_write_1h_picos],
    [completion_tokens, output_picos],
  ] as const
  const exact = amounts.reduce((sum, [tokens, rate]) => sum + BigInt(tokens) * BigInt(rate), 0n)
  return Math.min(Number((exact + 500n) / 1000n), Number.MAX_SAFE_INTEGER)
}

/** Nano-dollars as the JSON number the API shows, in USD. The nearest double prints as the exact decimal below 10^6 USD. */
export function usd(nanos: number): number {
  return nanos / NANOS_PER_USD
}

/** Nano-dollars as an exact JSON number literal in USD, never in exponent form: `0.00001234`. */
export function usdLiteral(nanos: number): string {
  if (!Number.isSafeInteger(nanos) || nanos < 0)
    throw new RangeError(`${nanos} is not an amount of nano-dollars`)
  const whole = Math.floor(nanos / NANOS_PER_USD)
  const rest = nanos % NANOS_PER_USD
  if (rest === 0) return String(whole)
  const digits = String(NANOS_PER_USD + rest)
  let end = digits.length
  while (digits[end - 1] === '0') end--
  return `${whole}.${digits.slice(1, end)}`
}

/** An amount in USD, as written in a request, to nano-dollars; throws a RangeError when the number is not an amount. */
export function nanosFromUsd(amount: number): number {
  const nanos = Math.round(amount * NANOS_PER_USD)
  if (!Number.isSafeInteger(nanos) || nanos < 0) throw new RangeError(`${amount} is not an amount in USD`)
  return nanos
}

// The amounts that limits count: money, tokens and lines that are sent, all whole numbers.

export interface Spend {
  cost_nanos: number
  tokens: number
  /** Lines that are sent, however often, or share the answer of one that is. */
  requests: number
}

export const NO_SPEND: Readonly<Spend> = Object.freeze({ cost_nanos: 0, tokens: 0, requests: 0 })

export function plus(a: Spend, b: Spend): Spend {
  const sum = { ...a }
  addInPlace(sum, b)
  return sum
}

/** Adds in place, for sums over many lines. */
export function addInPlace(sum: Spend, by: Spend): void {
  sum.cost_nanos = sumOf(sum.cost_nanos, by.cost_nanos)
  sum.tokens = sumOf(sum.tokens, by.tokens)
  sum.requests = sumOf(sum.requests, by.requests)
}

/** Its negative: added, it takes the spend away. */
export function negative({ cost_nanos, tokens, requests }: Spend): Spend {
  return { cost_nanos: -cost_nanos, tokens: -tokens, requests: -requests }
}

/** Never below zero. */
export function minus(a: Spend, b: Spend): Spend {
  return {
    cost_nanos: Math.max(0, a.cost_nanos - b.cost_nanos),
    tokens: Math.max(0, a.tokens - b.tokens),
    requests: Math.max(0, a.requests - b.requests),
  }
}

export function isZero({ cost_nanos, tokens, requests }: Spend): boolean {
  return cost_nanos === 0 && tokens === 0 && requests === 0
}

/** By metric, the amount that its limits count: nano-dollars, tokens or lines. */
const COUNTED = { cost_usd: 'cost_nanos', tokens: 'tokens', requests: 'requests' } as const

export function counted(spend: Spend, metric: LimitMetric): number {
  return spend[COUNTED[metric]]
}

/** An amount that a limit on `metric` counts as the API shows it: in USD, tokens or lines. */
export function inMetric(metric: LimitMetric, amount: number): number {
  return metric === 'cost_usd' ? usd(amount) : amount
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
