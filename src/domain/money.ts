// Money is integer nano-dollars (1 USD = 10^9), so sums are exact in any order. A price is integer
// pico-dollars per token (1 USD per million tokens = 10^6), so that prices with six decimals stay exact,
// and each line is rounded once, half up, to a whole nano-dollar.
import { recordOf } from './json-record.ts'
import type { LimitMetric } from './limit.ts'

export const NANOS_PER_USD = 1_000_000_000
const PICOS_PER_NANO = 1000

/** Prices of tokens, in pico-dollars per token. An absent price equals that of other prompt tokens. */
export interface Rates {
  input_picos: number
  output_picos: number
  /** The price of prompt tokens that the server read from its cache. */
  cached_input_picos?: number | undefined
  /** The price of prompt tokens that the server wrote to its cache. */
  cache_write_picos?: number | undefined
  /** The price of prompt tokens that the server caches for an hour; absent: the price of other writes. */
  cache_write_1h_picos?: number | undefined
}

/** The prices of a model. */
export interface Price extends Rates {
  /** Rates for longer prompts, in ascending order. Each step has all of its rates. */
  above?: readonly PriceStep[] | undefined
  /** Rates by the service tier of an answer, for prompts of any length. */
  service_tiers?: ReadonlyMap<string, Rates> | undefined
}

interface PriceStep extends Rates {
  /** The prompt tokens above which these rates apply to all tokens of a request. */
  prompt_tokens: number
}

export const FREE: Price = { input_picos: 0, output_picos: 0 }

/** Parts of prompt tokens: read from the server's cache, written to it, and of these the ones cached for an hour. */
export const PROMPT_PARTS = ['cached_tokens', 'cache_write_tokens', 'cache_write_1h_tokens'] as const
/** Parts of completion tokens: reasoning. */
export const COMPLETION_PARTS = ['reasoning_tokens'] as const
export const TOKEN_PARTS = [...PROMPT_PARTS, ...COMPLETION_PARTS] as const
const TOKEN_COUNTS = ['prompt_tokens', 'completion_tokens', 'total_tokens', ...TOKEN_PARTS] as const

/** Token counts of all parts of a usage. */
export type TokenParts = Record<(typeof TOKEN_PARTS)[number], number>
/** The counts of the parts that have any; absent: none. */
type SomeParts = { [Part in keyof TokenParts]?: number | undefined }

export interface TokenUsage extends SomeParts {
  prompt_tokens: number
  completion_tokens: number
  total_tokens: number
}

/** The given parts, each limited to the tokens that it is a part of. */
export function partsWithin(
  { prompt_tokens, completion_tokens }: Pick<TokenUsage, 'prompt_tokens' | 'completion_tokens'>,
  { cached_tokens = 0, cache_write_tokens = 0, cache_write_1h_tokens = 0, reasoning_tokens = 0 }: SomeParts,
): SomeParts {
  const written = Math.min(cache_write_tokens, prompt_tokens)
  const within: TokenParts = {
    // A token is either read or written; a write costs more.
    cached_tokens: Math.min(cached_tokens, prompt_tokens - written),
    cache_write_tokens: written,
    cache_write_1h_tokens: Math.min(cache_write_1h_tokens, written),
    reasoning_tokens: Math.min(reasoning_tokens, completion_tokens),
  }
  // Most answers have parts: a list of entries for each would take five times as long.
  const some: SomeParts = {}
  for (const part of TOKEN_PARTS) if (within[part] > 0) some[part] = within[part]
  return some
}

export const NO_TOKENS: TokenUsage = { prompt_tokens: 0, completion_tokens: 0, total_tokens: 0 }

export function addTokens(a: TokenUsage, b: TokenUsage): TokenUsage {
  return recordOf(TOKEN_COUNTS, (name) => sumOf(a[name] ?? 0, b[name] ?? 0))
}

/** Converts USD per million tokens to pico-dollars per token; throws a RangeError for a number that is no price. */
export function picosPerToken(usdPerMtok: number): number {
  const picos = Math.round(usdPerMtok * 1_000_000)
  if (!Number.isSafeInteger(picos) || picos < 0)
    throw new RangeError(`${usdPerMtok} is not a price per million tokens`)
  return picos
}

/** The rates of a request by its prompt tokens and the service tier of its answer, if it names one. */
export function ratesAt(price: Price, prompt_tokens: number, service_tier: string | null = null): Rates {
  const ofTier = service_tier === null ? undefined : price.service_tiers?.get(service_tier)
  return ofTier ?? price.above?.findLast((step) => prompt_tokens > step.prompt_tokens) ?? price
}

/**
 * A price at which a request costs no less than at each of `prices`, and a longer prompt no less than a shorter one;
 * FREE without prices.
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

/** Whether a prompt of some length costs more at the first of two projected prices. */
export function isDearer(one: Price, other: Price): boolean {
  const lengths = [0, ...(one.above ?? []).map(({ prompt_tokens }) => prompt_tokens + 1)]
  return lengths.some((length) => {
    const [a, b] = [ratesAt(one, length), ratesAt(other, length)]
    return a.input_picos > b.input_picos || a.output_picos > b.output_picos
  })
}

const NO_PARTS: SomeParts = {}

/** The cost of one line in nano-dollars, limited to the largest exact number. `parts`: tokens with their own rates. */
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
  // The exact sum is fast, and every line needs it; larger amounts are computed in parts.
  if (Number.isSafeInteger(picos)) return Math.floor((picos + PICOS_PER_NANO / 2) / PICOS_PER_NANO)
  const amounts = Object.values(meteredTokens({ prompt_tokens, completion_tokens, ...parts }, rates))
  const exact = amounts.reduce((sum, [tokens, rate]) => sum + BigInt(tokens) * BigInt(rate), 0n)
  return Math.min(Number((exact + 500n) / 1000n), Number.MAX_SAFE_INTEGER)
}

/** The tokens of each meter and their rate, each token in one meter. */
export function meteredTokens(usage: Omit<TokenUsage, 'total_tokens'>, rates: Rates) {
  const { prompt_tokens, completion_tokens } = usage
  const { cached_tokens = 0, cache_write_tokens = 0, cache_write_1h_tokens = 0 } = usage
  const { input_picos, output_picos, cached_input_picos = input_picos } = rates
  const { cache_write_picos = input_picos, cache_write_1h_picos = cache_write_picos } = rates
  return {
    'Input tokens': [prompt_tokens - cached_tokens - cache_write_tokens, input_picos],
    'Cached input tokens': [cached_tokens, cached_input_picos],
    'Cache write tokens': [cache_write_tokens - cache_write_1h_tokens, cache_write_picos],
    'Cache write tokens (1 h)': [cache_write_1h_tokens, cache_write_1h_picos],
    'Output tokens': [completion_tokens, output_picos],
  } as const
}

/** Nano-dollars as the USD number in the API. The nearest double prints as the exact decimal below 10^6 USD. */
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

/** Converts an amount in USD from a request to nano-dollars; throws a RangeError for a number that is no amount. */
export function nanosFromUsd(amount: number): number {
  const nanos = Math.round(amount * NANOS_PER_USD)
  if (!Number.isSafeInteger(nanos) || nanos < 0) throw new RangeError(`${amount} is not an amount in USD`)
  return nanos
}

// The amounts that limits count: money, tokens and lines, all whole numbers.

/** The amounts; requests: the number of lines that are sent, however often, or share a sent line's answer. */
export const AMOUNTS = ['cost_nanos', 'tokens', 'requests'] as const
export type Spend = Record<(typeof AMOUNTS)[number], number>

export const NO_SPEND: Readonly<Spend> = Object.freeze(recordOf(AMOUNTS, () => 0))

export function plus(a: Spend, b: Spend): Spend {
  const sum = { ...a }
  addInPlace(sum, b)
  return sum
}

/** Adds in place, for sums over many lines. */
export function addInPlace(sum: Spend, by: Spend): void {
  for (const name of AMOUNTS) sum[name] = sumOf(sum[name], by[name])
}

/** The negative amounts, to be added where spend is removed. */
export function negative({ cost_nanos, tokens, requests }: Spend): Spend {
  return { cost_nanos: -cost_nanos, tokens: -tokens, requests: -requests }
}

/** The difference, each amount at least zero. */
export function minus(a: Spend, b: Spend): Spend {
  return {
    cost_nanos: Math.max(0, a.cost_nanos - b.cost_nanos),
    tokens: Math.max(0, a.tokens - b.tokens),
    requests: Math.max(0, a.requests - b.requests),
  }
}

export function isZero(spend: Spend): boolean {
  return AMOUNTS.every((name) => spend[name] === 0)
}

/** The amount that limits on a metric count: nano-dollars, tokens or lines. */
const COUNTED = { cost_usd: 'cost_nanos', tokens: 'tokens', requests: 'requests' } as const

export function counted(spend: Spend, metric: LimitMetric): number {
  return spend[COUNTED[metric]]
}

/** A counted amount as the API shows it: in USD, tokens or lines. */
export function inMetric(metric: LimitMetric, amount: number): number {
  return metric === 'cost_usd' ? usd(amount) : amount
}

export function addSpend<K>(sums: Map<K, Spend>, key: K, spend: Spend): void {
  sums.set(key, plus(sums.get(key) ?? NO_SPEND, spend))
}

// Saturating sums: whole numbers that stop at 2^53 - 1, the largest number that JavaScript, JSON and every database
// represent exactly. A database would reject a larger sum, and with it every other result of the same commit.
//
// For counts that are not negative the order of additions makes no difference.

export const COUNT_MAX = Number.MAX_SAFE_INTEGER

/** The count, limited to COUNT_MAX. */
export function atMost(count: number): number {
  return Math.min(count, COUNT_MAX)
}

/** The sum of two counts, or of a count and a change of it. */
export function sumOf(a: number, b: number): number {
  return Math.max(-COUNT_MAX, atMost(a + b))
}
