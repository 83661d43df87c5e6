// Usage as rows of FOCUS 1.3, the FinOps Open Cost and Usage Specification: one for each day, project, entity, key, model
// and meter. https://focus.finops.org/focus-specification/v1-3/
//
// What a line costs is kept as one amount. It is divided among the meters of its day, entity, key and model in the
// proportion of what they cost at the model's price now; the sum of the parts is the amount that was charged.
import { DAY_MS } from '../domain/days.ts'
import { windowAt } from '../domain/limit.ts'
import type { SumOf } from '../domain/line-sums.ts'
import { meteredTokens, type Rates } from '../domain/money.ts'
import { cellOf, decimalColumn, timeColumn } from './parquet-columns.ts'
import { type Cell, type Column, cellJson } from './table.ts'

/** The usage of one day, project, entity, key and model; an empty text means none. */
export interface DayUsage extends Record<SumOf<'usage_days'>, number> {
  region: string
  project: { id: string; name: string }
  /** The beginning of the usage's day (Unix ms). */
  start: number
  entity: string
  entity_type: string
  key: string
  model: string
}

interface Charge extends DayUsage {
  meter: string
  unit: string
  quantity: number
  cost: bigint
}

const PROVIDER = 'Offpeak'
const NO_MODEL = 'no model'
const NANO_DIGITS = 9

const text = (name: string): Column => ({ name, type: 'string' })
const cost = (name: string): Column => decimalColumn(name, NANO_DIGITS)
/** A column of quantities, with a decimal place, without which readers of CSV would take it for integers. */
const quantity = (name: string): Column => decimalColumn(name, 1)
const orNull = (found: string): string | null => found || null

/** The columns of a row, each with the function for its value as a Parquet file stores it. */
const COLUMNS: readonly (readonly [Column, (charge: Charge) => Cell])[] = [
  [cost('BilledCost'), ({ cost }) => cost],
  [text('BillingAccountId'), ({ region }) => region],
  [text('BillingAccountName'), ({ region }) => `${PROVIDER} ${region}`],
  [text('BillingCurrency'), () => 'USD'],
  [timeColumn('BillingPeriodEnd'), ({ start }) => BigInt(windowAt('month', start).end)],
  [timeColumn('BillingPeriodStart'), ({ start }) => BigInt(windowAt('month', start).start)],
  [text('ChargeCategory'), () => 'Usage'],
  [text('ChargeClass'), () => null],
  [text('ChargeDescription'), ({ meter, model }) => `${meter} of ${model || NO_MODEL}`],
  [text('ChargeFrequency'), () => 'Usage-Based'],
  [timeColumn('ChargePeriodEnd'), ({ start }) => BigInt(start + DAY_MS)],
  [timeColumn('ChargePeriodStart'), ({ start }) => BigInt(start)],
  [quantity('ConsumedQuantity'), ({ quantity }) => BigInt(quantity) * 10n],
  [text('ConsumedUnit'), ({ unit }) => unit],
  [cost('ContractedCost'), ({ cost }) => cost],
  [cost('EffectiveCost'), ({ cost }) => cost],
  [text('HostProviderName'), () => PROVIDER],
  [text('InvoiceId'), () => null],
  [text('InvoiceIssuerName'), () => PROVIDER],
  [cost('ListCost'), ({ cost }) => cost],
  [text('PricingCategory'), () => 'Standard'],
  [quantity('PricingQuantity'), ({ quantity }) => BigInt(quantity) * 10n],
  [text('PricingUnit'), ({ unit }) => unit],
  [text('ProviderName'), () => PROVIDER],
  [text('PublisherName'), () => PROVIDER],
  [text('RegionId'), ({ region }) => region],
  [text('RegionName'), ({ region }) => region],
  [text('ResourceId'), ({ model }) => orNull(model)],
  [text('ResourceName'), ({ model }) => orNull(model)],
  [text('ResourceType'), ({ model }) => (model === '' ? null : 'Model')],
  [text('ServiceCategory'), () => 'AI and Machine Learning'],
  [text('ServiceName'), () => `${PROVIDER} batch inference`],
  [text('ServiceProviderName'), () => PROVIDER],
  [text('ServiceSubcategory'), () => 'Generative AI'],
  // FOCUS wants one of all usage.
  [text('SkuId'), ({ model }) => model || NO_MODEL],
  [text('SkuMeter'), ({ meter }) => meter],
  [text('SubAccountId'), ({ project }) => project.id],
  [text('SubAccountName'), ({ project }) => project.name],
  [text('SubAccountType'), () => 'Project'],
  [text('Tags'), tagsOf],
  [text('x_ApiKeyId'), ({ key }) => orNull(key)],
  [text('x_Entity'), ({ entity }) => orNull(entity)],
  [text('x_EntityType'), ({ entity_type }) => orNull(entity_type)],
]

export const FOCUS_COLUMNS: readonly Column[] = COLUMNS.map(([column]) => column)

function tagsOf({ entity, entity_type, key, model }: Charge): string {
  const tags = Object.entries({ entity, entity_type, api_key: key, model })
  return cellJson(Object.fromEntries(tags.filter(([, value]) => value !== '')))
}

/** Makes the rows of a day's usage, one for each meter with a quantity. `rates`: the model's current prices. */
export function focusRows(usage: DayUsage, rates: Rates): Cell[][] {
  return chargesOf(usage, rates).map((charge) =>
    COLUMNS.map(([{ parquet }, of]) => (parquet ? cellOf(of(charge), parquet) : of(charge))),
  )
}

function chargesOf(usage: DayUsage, rates: Rates): Charge[] {
  const metered = Object.entries(meteredTokens(usage, rates))
    .map(([meter, [quantity, picos]]) => ({ meter, unit: 'Tokens', quantity, picos }))
    .filter(({ quantity }) => quantity > 0)
  const total = BigInt(usage.cost_nanos)
  // A cost needs at least one meter.
  if (metered.length === 0 && total > 0n)
    metered.push({ meter: 'Lines', unit: 'Lines', quantity: usage.succeeded, picos: 0 })
  const priced = metered.map(({ quantity, picos }) => BigInt(quantity) * BigInt(picos))
  const isPriced = priced.some((weight) => weight > 0n)
  const weights = isPriced ? priced : metered.map(({ quantity }) => BigInt(quantity) || 1n)
  const sum = weights.reduce((a, b) => a + b, 0n)
  let left = total
  const charges = metered.map(({ meter, unit, quantity }, i) => {
    const cost = (total * (weights[i] ?? 0n)) / sum
    left -= cost
    return { ...usage, meter, unit, quantity, cost }
  })
  // The rest of the divisions, below a nano-dollar for each meter, goes to the meter that costs most.
  const most = weights.reduce((best, weight, i) => (weight > (weights[best] ?? 0n) ? i : best), 0)
  if (charges[most]) charges[most].cost += left
  return charges
}
