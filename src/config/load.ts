// Loads the configuration: reads file, variables and flags by the schema, reports every problem at once with its place,
// and makes the typed configuration, secrets included.

import type { Static } from 'typebox'
import { systemClock } from '../domain/clock.ts'
import { ENDPOINT_PATHS } from '../domain/endpoint.ts'
import { nearest } from '../domain/text.ts'
import type { Config } from './config.ts'
import { CONFIG_FILE, MODELS, type ModelShape } from './schema.ts'
import { crossCheck, telemetryFromEnv, toConfig } from './settings.ts'
import { RULES, type Rules, type Shape } from './shape.ts'
import {
  ConfigError,
  configFileName,
  offpeakVariables,
  type Path,
  readConfigFile,
  type Sources,
  shown,
  type Tree,
  variableTree,
} from './sources.ts'

/** Flags of the command line, which win over variables and file. */
export type ConfigFlags = Partial<Record<Exclude<keyof typeof FLAG_PATHS, 'port'>, string>> & {
  port?: string | number | undefined
}

/** The key of the configuration that each flag sets. */
const FLAG_PATHS = {
  region: 'region',
  host: 'listen.host',
  port: 'listen.port',
  data: 'data_dir',
  database: 'database',
  blobs: 'blobs',
  log_level: 'log.level',
  workers: 'worker.processes',
} as const

export interface ConfigRequest {
  /** The file of `--config`; absent: OFFPEAK_CONFIG, else offpeak.yaml in the working directory if it exists. */
  file?: string | undefined
  env: NodeJS.ProcessEnv
  overrides?: ConfigFlags
  /** The folder of relative paths; by default the working directory. */
  cwd?: string
  /** The time of loading (Unix ms), which the models have as their time of creation. */
  now?: number
}

/** Variables that name the programs of engines, which `run` starts. */
export const ENGINE_VARIABLES = [
  'OFFPEAK_LLAMA_SERVER',
  'OFFPEAK_VLLM',
  'OFFPEAK_SGLANG',
  'OFFPEAK_OLLAMA',
  'OFFPEAK_MLX',
] as const

/** Variables that begin with OFFPEAK_ and are not keys of the configuration. */
const OTHER_VARIABLES = [
  'OFFPEAK_BASE_URL',
  'OFFPEAK_API_KEY',
  'OFFPEAK_MASTER_KEY',
  'OFFPEAK_CONFIG',
  ...ENGINE_VARIABLES,
]

/**
 * The prefix of variables. OFFPEAK_DEFAULT_DATA_DIR, set by the image, replaces the built-in default: the file wins.
 */
const OWN = 'OFFPEAK_'
const DEFAULTS = /^OFFPEAK_DEFAULT_/

/** The prefix of variables that only tests read; they may be set while tests start a service. */
const TEST_VARIABLES = 'OFFPEAK_TEST_'

/** Loads the configuration. Throws a ConfigError that names every problem. */
export function loadConfig(request: ConfigRequest): Config {
  const { env, overrides = {}, cwd = process.cwd() } = request
  const variables = offpeakVariables(env)
  const file = readConfigFile(configFileName(request.file, variables.get('OFFPEAK_CONFIG'), cwd), cwd)
  const problems: string[] = []
  const values = readShape(CONFIG_FILE, { file, variables, flags: flagsByPath(overrides), env }, problems)
  refuseUnknownVariables(variables, problems)
  const telemetry = telemetryFromEnv(env, problems)
  if (problems.length > 0) throw new ConfigError(problems)
  const models = values.models ?? readModels([SIMULATED])
  const config = toConfig({ ...values, models }, env, cwd, request.now ?? systemClock.now(), telemetry)
  const contradictions = crossCheck(config)
  if (contradictions.length > 0) throw new ConfigError(contradictions)
  return config
}

/** The model of a service without a configuration. */
const SIMULATED = {
  id: 'sim-1',
  context_window: 131_072,
  max_output_tokens: 4096,
  price: { input_per_mtok: 0.1, output_per_mtok: 0.4 },
  endpoints: ENDPOINT_PATHS,
  upstreams: [{ type: 'sim', latency_ms: 20 }],
}

/** Reads models as a file would have them, and adds their defaults. */
export function readModels(written: readonly object[]): ModelShape[] {
  const file = variableTree('models', JSON.stringify(written))
  const problems: string[] = []
  const models = readShape(MODELS, { file, variables: new Map(), flags: new Map(), env: {} }, problems)
  if (problems.length > 0) throw new ConfigError(problems)
  return models
}

function flagsByPath(flags: ConfigFlags): Sources['flags'] {
  const byPath = new Map<string, { name: string; text: string }>()
  for (const [flag, path] of Object.entries(FLAG_PATHS)) {
    const value: unknown = Reflect.get(flags, flag)
    if (value !== undefined) byPath.set(path, { name: `--${flag.replaceAll('_', '-')}`, text: String(value) })
  }
  return byPath
}

function refuseUnknownVariables(variables: ReadonlyMap<string, string>, problems: string[]): void {
  const known = new Set<string>(OTHER_VARIABLES)
  for (const variable of keysOf(CONFIG_FILE).values()) if (variable !== null) known.add(variable)
  for (const name of variables.keys()) {
    if (known.has(name.replace(DEFAULTS, OWN)) || name.startsWith(TEST_VARIABLES)) continue
    // The prefix is removed before names are compared, since all names have it.
    const own = [...known].map((one) => one.replace(OWN, ''))
    const found = nearest(name.replace(OWN, ''), own)
    const close = found === null ? null : OWN + found
    problems.push(
      `${name}: unknown variable${close === null ? '; docs/configuration.md lists them all' : `; did you mean ${close}?`}`,
    )
  }
}

// Reads the value of a shape from flags, variables and file. Every problem is collected, with the place of its value.

/** The place of a value in the configuration file, and its variable. */
interface Place {
  tree: Tree
  path: Path
  /** The variable that sets the value; null inside lists and maps whose keys the user chooses. */
  variable: string | null
}

/** Reads a shape. The value is complete only if `problems` has not grown. */
function readShape<S extends Shape>(shape: S, sources: Sources, problems: string[]): Static<S> {
  const root = { tree: sources.file, path: [], variable: 'OFFPEAK' }
  return new ShapeReader(sources, problems).read(shape, root, sources.file.root) as Static<S>
}

class ShapeReader {
  readonly #sources: Sources
  readonly #problems: string[]

  constructor(sources: Sources, problems: string[]) {
    this.#sources = sources
    this.#problems = problems
  }

  read(shape: Shape, at: Place, found: unknown): unknown {
    const rules = shape[RULES]
    const flag = this.#sources.flags.get(pathText(at.path))
    const variable = this.#variableOf(at, found)
    const text = variable === null ? undefined : this.#sources.variables.get(variable)
    if (flag !== undefined) return this.#parse(rules, flag.text, `${flag.name}: `)
    if (text !== undefined && rules.parse) return this.#parse(rules, text, `${variable}: `)
    if (text !== undefined && variable !== null && shape.properties === undefined) {
      const tree = variableTree(variable, text)
      return this.#readFound(shape, { tree, path: at.path, variable: null }, tree.root ?? null)
    }
    return this.#readFound(shape, at, found ?? shape.default ?? null)
  }

  /** The variable that sets a value, else the one that sets its default; null where no variable can. */
  #variableOf({ variable }: Place, found: unknown): string | null {
    if (variable === null || found !== null || this.#sources.variables.has(variable)) return variable
    return variable.replace(OWN, `${OWN}DEFAULT_`)
  }

  #readFound(shape: Shape, at: Place, found: unknown): unknown {
    const { optional, expected, parse } = shape[RULES]
    if (found === null && optional) return null
    const isMap = shape.properties !== undefined || shape.additionalProperties !== undefined
    if (found === null && !isMap) return this.#report(at, `is missing; expected ${expected}`)
    if (parse) return this.#readScalar(shape[RULES], at, found)
    if (shape.anyOf && !shape.items) return this.#readAnyOf(shape.anyOf, at, found)
    return this.#check(shape, at, () =>
      shape.items ? this.#readList(shape.items, at, found) : this.#readMap(shape, at, found),
    )
  }

  #check(shape: Shape, at: Place, read: () => unknown): unknown {
    const before = this.#problems.length
    const value = read()
    if (this.#problems.length === before)
      shape[RULES].check?.(
        value,
        (steps, what) => this.#report({ ...at, path: [...at.path, ...steps] }, what),
        this.#sources.env,
      )
    return value
  }

  #readScalar(rules: Rules, at: Place, found: unknown): unknown {
    const place = `${at.tree.place(at.path)}${pathText(at.path)}: `
    const scalar = typeof found === 'string' || typeof found === 'number' || typeof found === 'boolean'
    if (scalar && rules.types?.some((type) => type === typeof found))
      return this.#parse(rules, String(found), place, found)
    const quotes = rules.secret ? ' (text goes in quotes)' : ` (text goes in quotes: "${found}")`
    const quoted = scalar && rules.types?.includes('string') ? quotes : ''
    this.#problems.push(`${place}${mismatch(rules, found)}${quoted}`)
  }

  #parse(rules: Rules, text: string, place: string, found: unknown = text): unknown {
    const value = rules.parse?.(text)
    if (value === undefined) this.#problems.push(`${place}${mismatch(rules, found)}`)
    else rules.check?.(value, (_, what) => this.#problems.push(`${place}${what}`), this.#sources.env)
    return value
  }

  #readList(item: Shape, at: Place, found: unknown): unknown {
    const items: readonly unknown[] = Array.isArray(found) ? found : [found]
    if (!Array.isArray(found) && !item[RULES].parse)
      return this.#report(at, `expected a list, found ${shown(found)}`)
    if (items.length === 0) return this.#report(at, 'expected at least one item')
    return items.map((one, i) =>
      this.#readFound(
        item,
        Array.isArray(found) ? { ...at, path: [...at.path, i], variable: null } : at,
        one,
      ),
    )
  }

  #readAnyOf(variants: readonly Shape[], at: Place, found: unknown): unknown {
    const [value, map] = variants
    if (map && value?.[RULES].parse) return this.#readFound(found instanceof Map ? map : value, at, found)
    if (!(found instanceof Map)) return this.#notMap(at, found)
    const type: unknown = found.get('type') ?? null
    const types = variants.map((one) => one.properties?.type?.const)
    const chosen = variants[types.indexOf(String(type))]
    if (chosen) return this.#check(chosen, at, () => this.#readMap(chosen, at, found))
    const expected = `expected one of ${types.join(', ')}`
    this.#report(
      { ...at, path: [...at.path, 'type'] },
      type === null ? `is missing; ${expected}` : `${expected}, found ${shown(type)}`,
    )
  }

  #readMap(shape: Shape, at: Place, found: unknown): unknown {
    const { properties, additionalProperties: item } = shape
    if (found !== null && !(found instanceof Map)) return this.#notMap(at, found)
    const entries: ReadonlyMap<unknown, unknown> = found ?? new Map()
    const inside = (key: string): Place => ({
      tree: at.tree,
      path: [...at.path, key],
      variable: at.variable === null || item ? null : `${at.variable}_${key.toUpperCase()}`,
    })
    const shapes: Iterable<[string, Shape]> = item
      ? [...entries.keys()].map((key) => [String(key), item])
      : Object.entries(properties ?? {})
    const values = [...shapes].map(([key, one]): [string, unknown] => [
      one[RULES].name ?? key,
      this.read(one, inside(key), entries.get(key) ?? null),
    ])
    if (properties) this.#refuseUnknown([...entries.keys()].map(String), Object.keys(properties), inside)
    return shape[RULES].isOrdered ? new Map(values) : Object.fromEntries(values)
  }

  #refuseUnknown(given: readonly string[], known: readonly string[], inside: (key: string) => Place): void {
    for (const name of given.filter((key) => !known.includes(key))) {
      const close = nearest(name, known)
      const advice = close !== null ? `did you mean ${close}?` : `the keys are ${known.join(', ')}`
      this.#report(inside(name), `unknown key; ${advice}`)
    }
  }

  #notMap(at: Place, found: unknown): void {
    this.#report(at, `expected a map of keys, found ${shown(found)}`)
  }

  #report({ tree, path }: Place, what: string): void {
    const key = pathText(path)
    this.#problems.push(`${tree.place(path)}${key === '' ? '' : `${key}: `}${what}`)
  }
}

function mismatch({ expected, secret }: Rules, found: unknown): string {
  return secret ? `expected ${expected}` : `expected ${expected}, found ${shown(found)}`
}

/** A path as text: `models[0].upstreams[1].base_url`. */
function pathText(path: Path): string {
  return path.reduce<string>(
    (text, step) => (typeof step === 'number' ? `${text}[${step}]` : text === '' ? step : `${text}.${step}`),
    '',
  )
}

/** The keys with a single value, as in the documentation, each with the variable that sets it, if any. */
export function keysOf(
  shape: Shape,
  path = '',
  variable: string | null = 'OFFPEAK',
): Map<string, string | null> {
  const keys = new Map<string, string | null>()
  const add = (more: Iterable<[string, string | null]>): void => {
    for (const [key, name] of more) keys.set(key, name)
  }
  const { properties, additionalProperties, items, anyOf } = shape
  const { parse } = shape[RULES]
  const variants = items || parse ? [] : (anyOf ?? [])
  const isNamedMap = additionalProperties && variable === null
  if (path !== '' && !properties && variants.length === 0 && !isNamedMap) keys.set(path, variable)
  for (const [key, one] of Object.entries(properties ?? {}))
    add(keysOf(one, path === '' ? key : `${path}.${key}`, variable && `${variable}_${key.toUpperCase()}`))
  if (additionalProperties) add(keysOf(additionalProperties, `${path}.<name>`, null))
  if (items && !items[RULES].parse) add(keysOf(items, `${path}[]`, null))
  for (const one of variants) add(keysOf(one, path, null))
  return keys
}
