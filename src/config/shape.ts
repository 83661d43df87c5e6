// Shapes describe the configuration. A shape is a TypeBox schema: the source of a TypeScript type, and of the JSON
// Schema for editors. What JSON Schema cannot express (units, checks across keys) is added under a symbol, which is
// left out when the schema is printed.
import { type Static, type TSchema, type TSchemaOptions, type TUnsafe, Type } from 'typebox'

export const RULES = Symbol('rules')

/** Reports a problem. `steps`: the path from the value to the key with the problem. */
type Problem = (steps: readonly (string | number)[], text: string) => void

export interface Rules {
  /** The expected form of a value, which completes the message "expected …". */
  expected: string
  /** Whether an omitted key is read as null. */
  optional?: true
  /** Whether messages never show the value of the key, even if it is invalid. */
  secret?: true
  /** The name of the value in the typed configuration, if not that of its key. */
  name?: string
  /** The types of a scalar in the file; a variable is always text. */
  types?: readonly ('string' | 'number' | 'boolean')[]
  /** Whether a map is read as a Map, in its order: an object would have keys that are numbers first. */
  isOrdered?: boolean
  /** Converts the text of a scalar to its value; undefined when it is invalid. */
  parse?(text: string): unknown
  /** Checks a value of the configuration whose parts are valid. */
  check?(value: unknown, problem: Problem, env: NodeJS.ProcessEnv): void
}

/** The JSON Schema keywords from which a value is read. */
interface Keywords extends TSchemaOptions {
  default?: unknown
  properties?: Readonly<Record<string, Shape>>
  required?: readonly string[]
  additionalProperties?: false | Shape
  items?: Shape
  anyOf?: readonly Shape[]
  const?: string
}

export type Shape<T = unknown> = TUnsafe<T> & Keywords & { readonly [RULES]: Rules }

declare const NAME: unique symbol
interface Named<Name extends string> {
  readonly [NAME]: Name
}

function shape<T>(keywords: Keywords, rules: Rules): Shape<T> {
  return Object.assign(Type.Unsafe<T>(keywords), keywords, { [RULES]: rules })
}

/** Declares a single value: `schema` describes its form in the file, `parse` converts its text. */
export function scalar<T>(
  schema: TSchema,
  expected: string,
  types: NonNullable<Rules['types']>,
  parse: (text: string) => T | undefined,
): Shape<T> {
  return shape({ ...schema, errorMessage: `expected ${expected}` }, { expected, types, parse })
}

/** Gives a shape a default, `value` in the file's form, for an omitted key. */
export function byDefault<T>(value: unknown, of: Shape<T>): Shape<T> {
  return shape({ ...of, default: value }, of[RULES])
}

export function optional<T>(of: Shape<T>): Shape<T | null> {
  return shape(of, { ...of[RULES], optional: true })
}

/** Gives a value the property `name`, which has its unit, in the configuration. */
export function named<Name extends string, T>(name: Name, of: Shape<T>): Shape<T> & Named<Name> {
  return shape<T>(of, { ...of[RULES], name }) as Shape<T> & Named<Name>
}

export function secret<T>(of: Shape<T>): Shape<T> {
  return shape(of, { ...of[RULES], secret: true })
}

export function checked<T>(
  of: Shape<T>,
  check: (value: T, problem: Problem, env: NodeJS.ProcessEnv) => void,
): Shape<T> {
  const rules = of[RULES]
  return shape(of, {
    ...rules,
    check(value: T, problem, env) {
      rules.check?.(value, problem, env)
      check(value, problem, env)
    },
  })
}

/** Declares a map with exactly the keys of `properties`; an omitted map is read as empty. */
export function section<P extends Record<string, Shape>>(
  properties: P,
): Shape<{ [K in keyof P as P[K] extends Named<infer Name> ? Name : K]: Static<P[K]> }> {
  const required = Object.keys(properties).filter((key) => isRequired(properties[key]))
  return shape(
    { type: 'object', properties, required, additionalProperties: false },
    { expected: 'a map of keys' },
  )
}

function isRequired(of: Shape | undefined): boolean {
  if (of === undefined || of[RULES].optional || of.default !== undefined) return false
  return of.properties === undefined ? of.additionalProperties === undefined : of.required?.length !== 0
}

/** Returns the problem of a key that the user has chosen, or null. */
type NameProblem = (name: string) => string | null

/** Declares a map whose keys the user chooses. */
export function mapOf<T>(item: Shape<T>, nameProblem: NameProblem): Shape<Record<string, T>> {
  return keyed<Record<string, T>>(item, {}, nameProblem, Object.keys)
}

/** Declares a map whose keys the user chooses, and whose order counts. */
export function orderedMapOf<T>(item: Shape<T>, nameProblem: NameProblem): Shape<ReadonlyMap<string, T>> {
  return keyed<ReadonlyMap<string, T>>(item, { isOrdered: true }, nameProblem, (map) => map.keys())
}

function keyed<M>(
  item: Shape,
  rules: Pick<Rules, 'isOrdered'>,
  nameProblem: NameProblem,
  keysOf: (map: M) => Iterable<string>,
): Shape<M> {
  const keywords = { type: 'object', additionalProperties: item }
  return checked(shape<M>(keywords, { ...rules, expected: 'a map of keys' }), (map, problem) => {
    for (const name of keysOf(map)) {
      const what = nameProblem(name)
      if (what !== null) problem([name], what)
    }
  })
}

/** Declares a list with at least one item. A list of scalars may be written as its only item. */
export function listOf<T>(item: Shape<T>, expected: string): Shape<T[]> {
  const array = { ...Type.Array(Type.Any()), items: item, minItems: 1 }
  return item[RULES].parse === undefined
    ? shape(array, { expected })
    : shape({ anyOf: [item, shape(array, { expected })], items: item }, { expected })
}

/** Declares a value that is either a scalar or a section. */
export function either<T, U>(value: Shape<T>, map: Shape<U>): Shape<T | U> {
  return shape({ anyOf: [value, map] }, { expected: value[RULES].expected })
}

/** Declares a choice of sections, each with its own `type`. */
export function variant<S extends Shape<{ type: string }>>(anyOf: readonly S[]): Shape<Static<S>> {
  return shape({ anyOf }, { expected: 'a map of keys' })
}
