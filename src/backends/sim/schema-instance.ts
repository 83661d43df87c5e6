// Generates a value that a JSON Schema accepts, by the keywords that most schemas of structured outputs and tools have.
// `pattern`, `not`, `if`, `uniqueItems`, `minProperties` and the exclusiveness of `oneOf` are ignored.
//
// Recursive schemas are bounded: beyond DEPTH_GENEROUS only required properties are generated, and where a value does
// not fit into DEPTH_MAX and NODES_MAX its parent tries an alternative (the next option, an empty array, no property).
import { isRecord } from '../../domain/json-record.ts'
import type { SeededRandom } from './seeded-random.ts'
import { GenerationBudget } from './sim-request.ts'

const DEPTH_GENEROUS = 3
const DEPTH_MAX = 12
const NODES_MAX = 5_000
const ITEMS_MAX = 1_000
/** The longest string that is generated, in characters. */
const LENGTH_MAX = 100_000
/** The number of values from which a number is drawn. */
const NUMBERS = 100

/** The result for a schema that no value satisfies. */
const NOTHING = Symbol('nothing')

type Schema = Record<string, unknown>

interface Making {
  root: unknown
  random: SeededRandom
  budget: GenerationBudget
  nodes: number
}

/**
 * Generates a JSON value that `schema` accepts; undefined if none is found. Throws a SimulatedError beyond the budget.
 */
export function schemaInstance(
  schema: unknown,
  random: SeededRandom,
  budget = new GenerationBudget(),
): unknown {
  const made = make(schema, { root: schema, random, budget, nodes: 0 }, 0)
  return made === NOTHING ? undefined : made
}

function make(given: unknown, making: Making, depth: number): unknown {
  const { random, budget } = making
  const schema = depth > DEPTH_MAX ? null : flatten(given, making)
  if (schema === null) return NOTHING
  const fixed = 'const' in schema ? [schema.const] : schema.enum
  if (Array.isArray(fixed)) {
    if (fixed.length === 0) return NOTHING
    const value = fixed[random.next() % fixed.length]
    budget.quoted(value)
    return value
  }
  const { anyOf, oneOf, ...beside } = schema
  const options = anyOf ?? oneOf
  const ways = Array.isArray(options) ? options : typesOf(schema)
  budget.steps(1 + ways.length)
  // At great depth, options without a further level come first.
  const start = depth > DEPTH_GENEROUS ? 0 : random.next() % Math.max(ways.length, 1)
  const order = [...ways.slice(start), ...ways.slice(0, start)]
  if (depth > DEPTH_GENEROUS) order.sort((a, b) => Number(isNested(a)) - Number(isNested(b)))
  for (const way of order) {
    const made =
      ways === options
        ? make({ allOf: [beside, way] }, making, depth + 1)
        : makeType(way, schema, making, depth)
    if (made !== NOTHING) return made
  }
  return NOTHING
}

function isNested(option: unknown): boolean {
  if (!isRecord(option)) return false
  return '$ref' in option || typesOf(option).some((type) => type === 'object' || type === 'array')
}

/** Resolves `$ref` and merges `allOf`; null when a reference leads nowhere, or to itself. */
function flatten(given: unknown, making: Making, hops = 0): Schema | null {
  making.nodes += 1
  if (given === true) return {}
  if (!isRecord(given) || hops > DEPTH_MAX || making.nodes > NODES_MAX) return null
  making.budget.steps(Object.keys(given).length)
  const { $ref, allOf, ...beside } = given
  const parts: unknown[] = Array.isArray(allOf) ? [...allOf] : []
  if (typeof $ref === 'string') {
    making.budget.steps($ref.length)
    parts.push(resolve($ref, making.root))
  }
  let schema: Schema = beside
  for (const part of parts) {
    const flat = flatten(part, making, hops + 1)
    if (flat === null) return null
    making.budget.steps(sizeOf(flat) + sizeOf(schema))
    schema = mergeSchemas(flat, schema)
  }
  return schema
}

/** Resolves a JSON pointer within the document: `#`, `#/$defs/node`. */
function resolve(ref: string, root: unknown): unknown {
  if (!ref.startsWith('#')) return undefined
  let at: unknown = root
  for (const step of ref.slice(1).split('/').slice(1)) {
    const key = step.replaceAll('~1', '/').replaceAll('~0', '~')
    if (!(Array.isArray(at) || isRecord(at)) || !Object.hasOwn(at, key)) return undefined
    at = Reflect.get(at, key)
  }
  return at
}

/** Merges two schemas, so that a value satisfies both; where that cannot be expressed, `second` applies. */
function mergeSchemas(first: Schema, second: Schema): Schema {
  const merged = { ...first, ...second }
  for (const [key, value] of Object.entries(first))
    if (Object.hasOwn(second, key)) merged[key] = both(key, value, second[key])
  return merged
}

function both(key: string, first: unknown, second: unknown): unknown {
  if (typeof first === 'number' && typeof second === 'number' && /min|max/i.test(key))
    return /min/i.test(key) ? Math.max(first, second) : Math.min(first, second)
  if (key === 'required' && Array.isArray(first) && Array.isArray(second))
    return [...new Set([...first, ...second])]
  if (key === 'type') {
    const shared = [first].flat().filter((type) => [second].flat().includes(type))
    // Every integer is also a number.
    return shared.length === 0 ? 'integer' : shared
  }
  if (key !== 'properties' || !isRecord(first) || !isRecord(second)) return second
  const merged: Schema = { ...first, ...second }
  for (const name of Object.keys(first))
    if (Object.hasOwn(second, name)) merged[name] = { allOf: [first[name], second[name]] }
  return merged
}

/** The size of a schema, for the budget of a merge. */
function sizeOf(schema: Schema): number {
  const sizes = Object.values(schema).map((value) =>
    Array.isArray(value) ? value.length : isRecord(value) ? Object.keys(value).length : 0,
  )
  return sizes.reduce((sum, size) => sum + size, sizes.length)
}

function typesOf(schema: Schema): unknown[] {
  if (Array.isArray(schema.type)) return schema.type
  if (typeof schema.type === 'string') return [schema.type]
  if ('properties' in schema || 'required' in schema || 'additionalProperties' in schema) return ['object']
  if ('items' in schema || 'prefixItems' in schema || 'minItems' in schema) return ['array']
  if ('minimum' in schema || 'maximum' in schema || 'multipleOf' in schema) return ['number']
  return ['string']
}

function makeType(type: unknown, schema: Schema, making: Making, depth: number): unknown {
  switch (type) {
    case 'object':
      return makeObject(schema, making, depth)
    case 'array':
      return makeArray(schema, making, depth)
    case 'string':
      return makeString(schema, making)
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
  const required = new Set(Array.isArray(schema.required) ? schema.required.map(String) : [])
  const keys = new Set([...Object.keys(properties), ...required])
  making.budget.steps(keys.size)
  const made: [string, unknown][] = []
  for (const key of keys) {
    if (!required.has(key) && depth >= DEPTH_GENEROUS) continue
    const property = Object.hasOwn(properties, key) ? properties[key] : (schema.additionalProperties ?? true)
    const value = make(property, making, depth + 1)
    if (value !== NOTHING) {
      making.budget.bytes(key.length)
      made.push([key, value])
    } else if (required.has(key)) return NOTHING
  }
  // Unlike assignment, fromEntries makes a plain property even of `__proto__`.
  return Object.fromEntries(made)
}

function makeArray(schema: Schema, making: Making, depth: number): unknown {
  const prefix: unknown[] = Array.isArray(schema.prefixItems) ? schema.prefixItems : []
  const least = numberOr(schema.minItems, 0)
  if (least > ITEMS_MAX) return NOTHING
  const liked =
    depth >= DEPTH_GENEROUS ? least : Math.max(least, prefix.length, 1 + (making.random.next() % 2))
  const items: unknown[] = []
  while (items.length < Math.min(liked, numberOr(schema.maxItems, ITEMS_MAX))) {
    const item = make(
      items.length < prefix.length ? prefix[items.length] : (schema.items ?? true),
      making,
      depth + 1,
    )
    if (item === NOTHING) return items.length >= least ? items : NOTHING
    items.push(item)
  }
  return items
}

function makeNumber(type: 'integer' | 'number', schema: Schema, random: SeededRandom): unknown {
  const multiple = numberOr(schema.multipleOf, 0)
  const step = multiple > 0 ? multiple : type === 'integer' ? 1 : null
  const above = numberOr(schema.exclusiveMinimum, Number.NEGATIVE_INFINITY)
  const below = numberOr(schema.exclusiveMaximum, Number.POSITIVE_INFINITY)
  const range = NUMBERS * (step ?? 1)
  const highest = Math.min(numberOr(schema.maximum, Number.POSITIVE_INFINITY), below)
  const lowest = Math.max(numberOr(schema.minimum, Number.NEGATIVE_INFINITY), above)
  const low = lowest === Number.NEGATIVE_INFINITY ? Math.min(0, highest - range) : lowest
  const high = Math.min(highest, low + range)
  if (step === null) return low > high ? NOTHING : low + (high - low) * (0.25 + random.fraction() / 2)
  const first = Math.max(Math.ceil(low / step), Math.floor(above / step) + 1)
  const last = Math.min(Math.floor(high / step), Math.ceil(below / step) - 1)
  return last < first ? NOTHING : Number((random.between(first, last) * step).toPrecision(15))
}

function makeString(schema: Schema, { random, budget }: Making): string {
  const least = Math.min(numberOr(schema.minLength, 0), LENGTH_MAX)
  budget.bytes(least)
  const format = FORMATS.get(String(schema.format))
  const text = format ? format(random.next()) : `simulated ${random.next().toString(36)}`
  return text.padEnd(least, ' simulated').slice(0, numberOr(schema.maxLength, LENGTH_MAX))
}

const FORMATS: ReadonlyMap<string, (drawn: number) => string> = new Map(
  Object.entries({
    'date-time': (drawn: number) => `2026-01-${10 + (drawn % 20)}T12:00:00Z`,
    date: (drawn: number) => `2026-01-${10 + (drawn % 20)}`,
    time: (drawn: number) => `12:00:${10 + (drawn % 50)}Z`,
    duration: (drawn: number) => `PT${1 + (drawn % 59)}M`,
    email: (drawn: number) => `simulated.${drawn}@example.com`,
    hostname: (drawn: number) => `host-${drawn}.example.com`,
    ipv4: (drawn: number) => `192.0.2.${1 + (drawn % 254)}`,
    ipv6: (drawn: number) => `2001:db8::${1 + (drawn % 9999)}`,
    uri: (drawn: number) => `https://example.com/${drawn}`,
    uuid: (drawn: number) => `00000000-0000-4000-a000-${drawn.toString(16).padStart(12, '0')}`,
  }),
)

function numberOr(value: unknown, otherwise: number): number {
  return typeof value === 'number' ? value : otherwise
}
