// Generates a value that a JSON Schema accepts, by all keywords that structured outputs and tools use in practice;
// `not`, `if` and the exclusiveness of `oneOf` are ignored.
//
// Recursive schemas are bounded: beyond DEPTH_GENEROUS only required properties are generated, and where a value does
// not fit into DEPTH_MAX and NODES_MAX its parent tries an alternative (the next option, an empty array, no property).
import { isRecord } from '../../domain/json-record.ts'
import { samplePattern } from './sample-pattern.ts'
import type { SeededRandom } from './seeded-random.ts'
import { GenerationBudget } from './sim-request.ts'

const DEPTH_GENEROUS = 3
const DEPTH_MAX = 12
const NODES_MAX = 5_000
const ITEMS_MAX = 1_000
const UNIQUE_TRIES = 100

/** What cannot be made. */
const NOTHING = Symbol('nothing')

interface Making {
  root: unknown
  random: SeededRandom
  budget: GenerationBudget
  nodes: number
}

/** A JSON value that `schema` accepts, or undefined when none was found. Throws a SimulatedError beyond the budget. */
export function schemaInstance(
  schema: unknown,
  random: SeededRandom,
  budget = new GenerationBudget(),
): unknown {
  const made = make(schema, { root: schema, random, budget, nodes: 0 }, 0)
  return made === NOTHING ? undefined : made
}

function make(given: unknown, making: Making, depth: number): unknown {
  making.nodes += 1
  if (depth > DEPTH_MAX || making.nodes > NODES_MAX || given === false) return NOTHING
  if (given === true) return 'simulated'
  const schema = flatten(given, making)
  if (schema === null) return NOTHING
  if ('const' in schema) return quoted(schema.const, making)
  if (Array.isArray(schema.enum)) return quoted(pick(schema.enum, making.random), making)

  const options = schema.anyOf ?? schema.oneOf
  if (Array.isArray(options)) return makeOption(schema, options, making, depth)
  const types = typesOf(schema)
  making.budget.steps(1 + types.length)
  for (const type of startingAnywhere(types, making.random, depth)) {
    const made = makeType(type, schema, making, depth)
    if (made !== NOTHING) return made
  }
  return NOTHING
}

function quoted(value: unknown, { budget }: Making): unknown {
  if (value !== NOTHING) budget.quoted(value)
  return value
}

/** Follows `$ref` and folds `allOf` in; null when a reference leads nowhere, or round in circles. */
function flatten(given: unknown, making: Making, hops = 0): Schema | null {
  making.nodes += 1
  if (given === true) return {}
  if (!isRecord(given) || hops > DEPTH_MAX || making.nodes > NODES_MAX) return null
  making.budget.steps(Object.keys(given).length)
  const { $ref, allOf, ...beside } = given
  let schema: Schema = beside
  if (typeof $ref === 'string') {
    making.budget.steps($ref.length)
    const target = flatten(resolve($ref, making.root), making, hops + 1)
    if (target === null) return null
    schema = mergeSchemas(target, schema, making.budget)
  }
  for (const part of Array.isArray(allOf) ? allOf : []) {
    const flat = flatten(part, making, hops + 1)
    if (flat === null) return null
    schema = mergeSchemas(schema, flat, making.budget)
  }
  return schema
}

/** A JSON pointer within the document: `#`, `#/$defs/node`. */
function resolve(ref: string, root: unknown): unknown {
  if (!ref.startsWith('#')) return undefined
  let at: unknown = root
  for (const step of ref.slice(1).split('/').slice(1)) {
    const key = decodeStep(step)
    if (Array.isArray(at)) at = at[Number(key)]
    else if (isRecord(at) && Object.hasOwn(at, key)) at = at[key]
    else return undefined
  }
  return at
}

function decodeStep(step: string): string {
  const plain = step.replaceAll('~1', '/').replaceAll('~0', '~')
  try {
    return decodeURIComponent(plain)
  } catch {
    return plain
  }
}

function makeOption(schema: Schema, options: unknown[], making: Making, depth: number): unknown {
  making.budget.steps(Object.keys(schema).length + 4 * options.length)
  const { anyOf: _, oneOf: __, ...beside } = schema
  // Deep down, what needs no further level comes first.
  const order =
    depth > DEPTH_GENEROUS
      ? options.toSorted((a, b) => Number(isNested(a)) - Number(isNested(b)))
      : startingAnywhere(options, making.random, depth)
  for (const option of order) {
    const flat = flatten(option, making)
    const made = flat === null ? NOTHING : make(mergeSchemas(beside, flat, making.budget), making, depth + 1)
    if (made !== NOTHING) return made
  }
  return NOTHING
}

function isNested(option: unknown): boolean {
  if (!isRecord(option)) return false
  return '$ref' in option || typesOf(option).some((type) => type === 'object' || type === 'array')
}

function typesOf(schema: Schema): string[] {
  if (typeof schema.type === 'string') return schema.nullable === true ? [schema.type, 'null'] : [schema.type]
  if (Array.isArray(schema.type)) return schema.type.filter((type) => typeof type === 'string')
  if ('properties' in schema || 'required' in schema || 'additionalProperties' in schema) return ['object']
  if ('items' in schema || 'prefixItems' in schema || 'minItems' in schema) return ['array']
  if ('minimum' in schema || 'maximum' in schema || 'multipleOf' in schema) return ['number']
  return ['string']
}

function makeType(type: string, schema: Schema, making: Making, depth: number): unknown {
  switch (type) {
    case 'object':
      return makeObject(schema, making, depth)
    case 'array':
      return makeArray(schema, making, depth)
    case 'string':
      return sampleString(schema, making.random, making.budget)
    case 'integer':
    case 'number':
      return makeNumber(type, schema, making.random)
    case 'boolean':
      return making.random.next() % 2 === 0
    case 'null':
      return null
  }
  return NOTHING
}

function makeObject(schema: Schema, making: Making, depth: number): unknown {
  const properties = isRecord(schema.properties) ? schema.properties : {}
  const required = new Set(Array.isArray(schema.required) ? schema.required.filter(isString) : [])
  making.budget.steps(Object.keys(properties).length + required.size)
  const made: [string, unknown][] = []
  for (const [key, property] of Object.entries(properties)) {
    const needed = required.has(key)
    if (!needed && depth >= DEPTH_GENEROUS) continue
    const value = make(property, making, depth + 1)
    if (value !== NOTHING) made.push([key, value])
    else if (needed) return NOTHING
  }
  const others = schema.additionalProperties ?? true
  const wanted = [...required].filter((key) => !Object.hasOwn(properties, key))
  const least = typeof schema.minProperties === 'number' ? Math.min(schema.minProperties, ITEMS_MAX) : 0
  for (let i = 1; made.length + wanted.length < least; i++) wanted.push(`simulated_${i}`)
  for (const key of wanted) {
    const value = make(others, making, depth + 1)
    if (value === NOTHING) return NOTHING
    made.push([key, value])
  }
  for (const [key] of made) making.budget.bytes(key.length)
  // Unlike assignment, this makes a plain property even of `__proto__`.
  return Object.fromEntries(made)
}

function makeArray(schema: Schema, making: Making, depth: number): unknown {
  // Before prefixItems, a tuple was a list of items.
  const tuple = schema.prefixItems ?? schema.items
  const prefix: unknown[] = Array.isArray(tuple) ? tuple : []
  const rest = Array.isArray(schema.items) ? (schema.additionalItems ?? true) : (schema.items ?? true)
  const least = typeof schema.minItems === 'number' ? schema.minItems : 0
  const most = typeof schema.maxItems === 'number' ? schema.maxItems : Number.POSITIVE_INFINITY
  if (least > ITEMS_MAX) return NOTHING
  const liked =
    depth >= DEPTH_GENEROUS ? least : Math.max(least, prefix.length, 1 + (making.random.next() % 2))
  const items: unknown[] = []
  const seen = new Set<string>()
  while (items.length < Math.min(liked, most)) {
    const wanted = items.length < prefix.length ? prefix[items.length] : rest
    const item = makeItem(wanted, making, depth, schema.uniqueItems === true ? seen : null)
    if (item === NOTHING) return items.length >= least ? items : NOTHING
    items.push(item)
  }
  return items
}

/** An item; one that is not among `seen`, where that is asked for. */
function makeItem(schema: unknown, making: Making, depth: number, seen: Set<string> | null): unknown {
  for (let tries = 0; tries < UNIQUE_TRIES; tries++) {
    const item = make(schema, making, depth + 1)
    if (item === NOTHING || seen === null) return item
    const text = JSON.stringify(item)
    making.budget.steps(text.length >> 3)
    if (!seen.has(text)) {
      seen.add(text)
      return item
    }
  }
  return NOTHING
}

function makeNumber(type: 'integer' | 'number', schema: Schema, random: SeededRandom): unknown {
  const step = typeof schema.multipleOf === 'number' && schema.multipleOf > 0 ? schema.multipleOf : null
  const grain = step ?? (type === 'integer' ? 1 : null)
  const low = bound(schema.minimum, schema.exclusiveMinimum, Math.max)
  const high = bound(schema.maximum, schema.exclusiveMaximum, Math.min)
  if (grain !== null) {
    let first = low === null ? null : Math.ceil(low.at / grain)
    if (first !== null && low?.open && first * grain === low.at) first += 1
    let last = high === null ? null : Math.floor(high.at / grain)
    if (last !== null && high?.open && last * grain === high.at) last -= 1
    const from = first ?? (last === null ? 1 : Math.min(1, last))
    const to = Math.min(last ?? Number.POSITIVE_INFINITY, from + 99)
    return to < from ? NOTHING : Number((random.between(from, to) * grain).toPrecision(15))
  }
  if (low !== null && high !== null) {
    if (low.at > high.at) return NOTHING
    if (low.at === high.at) return low.open || high.open ? NOTHING : low.at
    return low.at + (high.at - low.at) * (0.25 + random.fraction() / 2)
  }
  const away = random.between(1, 200) / 2
  if (low !== null) return low.at + away
  if (high !== null) return high.at - away
  return away
}

/** JSON Schema 4 wrote `exclusiveMinimum: true` beside `minimum`; later ones give the number itself. */
function bound(
  inclusive: unknown,
  exclusive: unknown,
  tighter: (a: number, b: number) => number,
): { at: number; open: boolean } | null {
  const closed = typeof inclusive === 'number' ? inclusive : null
  if (exclusive === true && closed !== null) return { at: closed, open: true }
  if (typeof exclusive !== 'number') return closed === null ? null : { at: closed, open: false }
  if (closed === null) return { at: exclusive, open: true }
  const at = tighter(closed, exclusive)
  return { at, open: at === exclusive }
}

function startingAnywhere<T>(options: readonly T[], random: SeededRandom, depth: number): T[] {
  if (options.length < 2 || depth > DEPTH_GENEROUS) return [...options]
  const start = random.next() % options.length
  return [...options.slice(start), ...options.slice(0, start)]
}

function pick(values: readonly unknown[], random: SeededRandom): unknown {
  return values.length === 0 ? NOTHING : values[random.next() % values.length]
}

function isString(value: unknown): value is string {
  return typeof value === 'string'
}

// `mergeSchemas` folds two schemas that must both hold into one, as far as one schema can express it.

type Schema = Record<string, unknown>

const HIGHER = new Set(['minimum', 'exclusiveMinimum', 'minLength', 'minItems', 'minProperties'])
const LOWER = new Set(['maximum', 'exclusiveMaximum', 'maxLength', 'maxItems', 'maxProperties'])

/** A schema whose instances both accept; where that cannot be expressed, `second` has its way. */
function mergeSchemas(first: Schema, second: Schema, budget: GenerationBudget): Schema {
  budget.steps(sizeOf(first) + sizeOf(second))
  const merged: Schema = { ...first }
  for (const [key, value] of Object.entries(second)) {
    merged[key] = Object.hasOwn(first, key) ? both(key, first[key], value, budget) : value
  }
  return merged
}

function both(key: string, first: unknown, second: unknown, budget: GenerationBudget): unknown {
  budget.steps(sizeOf(first) + sizeOf(second))
  if (typeof first === 'number' && typeof second === 'number') {
    if (HIGHER.has(key)) return Math.max(first, second)
    if (LOWER.has(key)) return Math.min(first, second)
  }
  if (key === 'required' && Array.isArray(first) && Array.isArray(second)) {
    return [...new Set([...first, ...second])]
  }
  if (key === 'enum' && Array.isArray(first) && Array.isArray(second)) {
    const textOf = (value: unknown): string => {
      const text = JSON.stringify(value) ?? ''
      budget.steps(text.length >> 3)
      return text
    }
    const kept = new Set(second.map(textOf))
    return first.filter((value) => kept.has(textOf(value)))
  }
  if (key === 'type') return bothTypes(first, second)
  if (key === 'properties' && isRecord(first) && isRecord(second)) return bothProperties(first, second)
  if (key === 'additionalProperties' && (first === false || second === false)) return false
  return second
}

function sizeOf(value: unknown): number {
  if (Array.isArray(value)) return value.length
  return isRecord(value) ? Object.keys(value).length : 1
}

function bothTypes(first: unknown, second: unknown): unknown {
  const other = [second].flat()
  const kept = [first].flat().flatMap((type) => {
    if (other.includes(type)) return [type]
    // Every integer is a number.
    const narrowed =
      (type === 'number' && other.includes('integer')) || (type === 'integer' && other.includes('number'))
    return narrowed ? ['integer'] : []
  })
  return kept.length === 1 ? kept[0] : kept
}

function bothProperties(first: Schema, second: Schema): Schema {
  const merged: Schema = { ...first }
  for (const [name, schema] of Object.entries(second)) {
    const twice = Object.hasOwn(first, name)
    merged[name] = twice ? { allOf: [first[name], schema] } : schema
  }
  return merged
}

// `sampleString` makes a string that a JSON Schema accepts: by its format, its pattern, its length.

/** Longer demands than this are not met. */
const LENGTH_MAX = 100_000

/** `pattern` is met best-effort: lookarounds and back-references are not understood. */
function sampleString(schema: Schema, random: SeededRandom, budget: GenerationBudget): string {
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
  const formats: Readonly<Record<string, () => string>> = {
    'date-time': () => `${date()}T${time()}`,
    date,
    time,
    duration: () => `PT${random.between(1, 59)}M`,
    email: () => `simulated.${hex(6)}@example.com`,
    hostname: () => `host-${hex(4)}.example.com`,
    ipv4: () => `192.0.2.${random.between(1, 254)}`,
    ipv6: () => `2001:db8::${random.between(1, 9999)}`,
    uri: () => `https://example.com/${hex(8)}`,
    uuid: () => `${hex(8)}-${hex(4)}-4${hex(3)}-a${hex(3)}-${hex(12)}`,
    'json-pointer': () => `/${hex(4)}`,
    regex: () => `^${hex(4)}$`,
  }
  // What is valid without internationalisation, and what is absolute, is valid with and without.
  const plain = format.replace(/^idn-(?=(email|hostname)$)/, '').replace(/^(url|[iu]ri(-reference)?)$/, 'uri')
  return Object.hasOwn(formats, plain) ? formats[plain]!() : null
}
