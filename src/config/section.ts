// Reads one map of the configuration key by key. Each key asked for is remembered, so whatever else the map
// holds is reported as unknown, and the set of keys is the code that reads them, with no schema beside it.
// Problems are collected, not thrown: a stand-in takes the place of a bad value until the end.
import { shown } from './config-error.ts'
import type { Kind } from './kinds.ts'
import { nearest } from './nearest.ts'
import { type Path, type Sources, type Tree, variableTree } from './sources.ts'

/** What one reading of a configuration gathers on its way. */
export class Reading {
  readonly sources: Sources
  readonly problems: string[] = []
  /** Every key that was asked for, as messages write it, with the variable that sets it, if any. */
  readonly keys = new Map<string, string | null>()

  constructor(sources: Sources) {
    this.sources = sources
  }

  read<T>(read: (section: Section) => T): T {
    const root = this.sources.file.root
    if (root !== null && !(root instanceof Map)) {
      this.problems.push(`${this.sources.file.place([])}expected a map of keys, found ${shown(root)}`)
    }
    return readMap(this, this.sources.file, [], root, 'OFFPEAK', read)
  }
}

export class Section {
  readonly #reading: Reading
  readonly #tree: Tree
  readonly #path: Path
  readonly #entries: ReadonlyMap<unknown, unknown>
  /** What the variables of its keys begin with; null where keys have none (inside lists and named maps). */
  readonly #variables: string | null
  readonly #asked = new Set<string>()

  constructor(
    reading: Reading,
    tree: Tree,
    path: Path,
    entries: ReadonlyMap<unknown, unknown>,
    variables: string | null,
  ) {
    this.#reading = reading
    this.#tree = tree
    this.#path = path
    this.#entries = entries
    this.#variables = variables
  }

  /** The names that the map holds; for maps whose keys the user chooses. */
  names(): string[] {
    return [...this.#entries.keys()].filter((key) => typeof key === 'string')
  }

  /** Whether the file gives this key a value. */
  has(key: string): boolean {
    return (this.#entries.get(key) ?? null) !== null
  }

  /** The value of `key`, from its flag, its variable or the file; else `fallback`. */
  value<T>(key: string, kind: Kind<T>, fallback: T): T {
    const variable = this.#ask(key)
    const flag = this.#reading.sources.flags.get(pathText([...this.#path, key]))
    if (flag !== undefined) return this.#parsed(kind, flag.text, `${flag.name}: `, fallback)
    const text = variable === null ? undefined : this.#reading.sources.variables.get(variable)
    if (text !== undefined) return this.#parsed(kind, text, `${variable}: `, fallback)
    const found = this.#entries.get(key) ?? null
    return found === null ? fallback : this.#scalar([...this.#path, key], kind, found, fallback)
  }

  /** Like `value`, for a key that has to be there; `stand_in` takes its place once that is reported. */
  required<T>(key: string, kind: Kind<T>, stand_in: T): T {
    if (!this.has(key)) {
      this.#ask(key)
      this.problem(key, `is missing; expected ${kind.expected}`)
      return stand_in
    }
    return this.value(key, kind, stand_in)
  }

  /** A list of scalars, or a single one in place of a list of one; null when it is not given. */
  values<T>(key: string, kind: Kind<T>): T[] | null {
    this.#ask(key)
    const found = this.#entries.get(key) ?? null
    if (found === null) return null
    const path = [...this.#path, key]
    if (!Array.isArray(found)) {
      const value = this.#scalar<T | null>(path, kind, found, null)
      return value === null ? [] : [value]
    }
    if (found.length === 0) this.problem(key, 'expected at least one item')
    const items: unknown[] = found
    return items
      .map((item, i) => this.#scalar<T | null>([...path, i], kind, item, null))
      .filter((value) => value !== null)
  }

  /** A map with keys of its own, each with its variable; absent, it is read as empty. */
  section<T>(key: string, read: (section: Section) => T): T {
    this.#asked.add(key)
    const found = this.#mapAt(this.#tree, key, this.#entries.get(key) ?? null)
    const variables = this.#variables === null ? null : variableName(this.#variables, key)
    return readMap(this.#reading, this.#tree, [...this.#path, key], found, variables, read)
  }

  /** A map whose keys the user chooses; a variable sets it whole, as YAML. */
  namedMap<T>(key: string, read: (section: Section) => T): T {
    const { tree, found } = this.#whole(key)
    const map = this.#mapAt(tree, key, found)
    return readMap(this.#reading, tree, [...this.#path, key], map, null, read)
  }

  /** A list of maps; a variable sets it whole, as YAML. Null when it is not given. */
  items<T>(key: string, read: (section: Section, index: number) => T): T[] | null {
    const { tree, found } = this.#whole(key)
    if (found === null) return null
    const path = [...this.#path, key]
    if (!Array.isArray(found)) {
      this.#report(tree, path, `expected a list, found ${shown(found)}`)
      return null
    }
    if (found.length === 0) this.#report(tree, path, 'expected at least one item')
    const items: unknown[] = found
    return items.flatMap((item, i) => {
      const at = [...path, i]
      if (item instanceof Map)
        return [readMap(this.#reading, tree, at, item, null, (section) => read(section, i))]
      this.#report(tree, at, `expected a map of keys, found ${shown(item)}`)
      return []
    })
  }

  /** Reports what is wrong with `key`, or with the map itself when `key` is null. */
  problem(key: string | null, what: string): void {
    this.#report(this.#tree, key === null ? this.#path : [...this.#path, key], what)
  }

  /** Lets every key pass: which ones are right cannot be told. */
  acceptRest(): void {
    for (const name of this.names()) this.#asked.add(name)
  }

  /** Reports every key that nobody asked for. */
  refuseUnknown(): void {
    for (const key of this.#entries.keys()) {
      if (typeof key === 'string' && this.#asked.has(key)) continue
      const name = String(key)
      const close = nearest(name, this.#asked)
      const advice = close !== null ? `did you mean ${close}?` : `the keys are ${[...this.#asked].join(', ')}`
      this.#report(this.#tree, [...this.#path, name], `unknown key; ${advice}`)
    }
  }

  #ask(key: string): string | null {
    this.#asked.add(key)
    const variable = this.#variables === null ? null : variableName(this.#variables, key)
    this.#reading.keys.set(pathText([...this.#path, key]), variable)
    return variable
  }

  #whole(key: string): { tree: Tree; found: unknown } {
    const variable = this.#ask(key)
    const text = variable === null ? undefined : this.#reading.sources.variables.get(variable)
    if (variable === null || text === undefined) {
      return { tree: this.#tree, found: this.#entries.get(key) ?? null }
    }
    const tree = variableTree(variable, text)
    return { tree, found: tree.root ?? null }
  }

  #mapAt(tree: Tree, key: string, found: unknown): unknown {
    if (found === null || found instanceof Map) return found
    this.#report(tree, [...this.#path, key], `expected a map of keys, found ${shown(found)}`)
    return null
  }

  #scalar<T>(path: Path, kind: Kind<T>, found: unknown, fallback: T): T {
    const place = `${this.#tree.place(path)}${pathText(path)}: `
    if (typeof found !== 'string' && typeof found !== 'number' && typeof found !== 'boolean') {
      this.#reading.problems.push(`${place}expected ${kind.expected}, found ${shown(found)}`)
      return fallback
    }
    if (!kind.scalars.some((type) => type === typeof found)) {
      const quoted = kind.scalars.includes('string') ? ` (text goes in quotes: "${found}")` : ''
      this.#reading.problems.push(`${place}expected ${kind.expected}, found ${shown(found)}${quoted}`)
      return fallback
    }
    return this.#parsed(kind, String(found), place, fallback, found)
  }

  #parsed<T>(kind: Kind<T>, text: string, place: string, fallback: T, found: unknown = text): T {
    const value = kind.read(text)
    if (value !== undefined) return value
    this.#reading.problems.push(`${place}expected ${kind.expected}, found ${shown(found)}`)
    return fallback
  }

  #report(tree: Tree, path: Path, what: string): void {
    const key = pathText(path)
    this.#reading.problems.push(`${tree.place(path)}${key === '' ? '' : `${key}: `}${what}`)
  }
}

/** `models[0].upstreams[1].base_url` */
export function pathText(path: Path): string {
  return path.reduce<string>(
    (text, step) => (typeof step === 'number' ? `${text}[${step}]` : text === '' ? step : `${text}.${step}`),
    '',
  )
}

function variableName(prefix: string, key: string): string {
  return `${prefix}_${key.toUpperCase()}`
}

function readMap<T>(
  reading: Reading,
  tree: Tree,
  path: Path,
  found: unknown,
  variables: string | null,
  read: (section: Section) => T,
): T {
  const entries: ReadonlyMap<unknown, unknown> = found instanceof Map ? found : new Map()
  const section = new Section(reading, tree, path, entries, variables)
  const value = read(section)
  section.refuseUnknown()
  return value
}
