// Reads the values of the configuration from their sources. A flag beats a variable, a variable beats the file, the file
// beats OFFPEAK_DEFAULT_ variables (which the image sets), and these beat the built-in defaults. No other part of the
// service reads the configuration file.
import { existsSync, readFileSync } from 'node:fs'
import { resolve } from 'node:path'
import { isMap, isNode, isScalar, isSeq, LineCounter, type ParsedNode, parseDocument } from 'yaml'
import { ExplainedError, messageOf } from '../domain/errors.ts'
import { withoutUrlSecrets } from '../domain/text.ts'

/** The keys and indexes that lead to a value: `['models', 0, 'id']`. */
export type Path = readonly (string | number)[]

/** A tree of Maps, arrays and scalars, with the places of its values in their source. */
export interface Tree {
  root: unknown
  /** The beginning of a message about `path`: `offpeak.yaml:3:7: `. */
  place(path: Path): string
}

export interface Sources {
  file: Tree
  /** The OFFPEAK_ variables of the operator; an empty one counts as not set. */
  variables: ReadonlyMap<string, string>
  /** The flags by path (`listen.port`): the flag's name and its text. */
  flags: ReadonlyMap<string, { name: string; text: string }>
  /** The environment's variables, for those that the configuration only names. */
  env: NodeJS.ProcessEnv
}

const FILE_BY_DEFAULT = 'offpeak.yaml'
const NO_FILE: Tree = { root: null, place: () => '' }

/** The file of the flag, else of OFFPEAK_CONFIG, else offpeak.yaml in `cwd` if it exists. */
export function configFileName(
  flag: string | undefined,
  variable: string | undefined,
  cwd: string,
): string | null {
  return flag ?? variable ?? (existsSync(resolve(cwd, FILE_BY_DEFAULT)) ? FILE_BY_DEFAULT : null)
}

export function readConfigFile(name: string | null, cwd: string): Tree {
  if (name === null) return NO_FILE
  let source: string
  try {
    source = readFileSync(resolve(cwd, name), 'utf8')
  } catch (error) {
    throw new ConfigError([`${name}: cannot be read (${messageOf(error)})`])
  }
  return parseTree(source, name, true)
}

/** Parses a variable whose value is YAML: a whole list or map (OFFPEAK_MODELS). */
export function variableTree(name: string, source: string): Tree {
  return parseTree(source, name, false)
}

export function offpeakVariables(env: NodeJS.ProcessEnv): Map<string, string> {
  const variables = new Map<string, string>()
  for (const [name, value] of Object.entries(env)) {
    if (name.startsWith('OFFPEAK_') && value !== undefined && value !== '' && !isServiceLink(name, value))
      variables.set(name, value)
  }
  return variables
}

/**
 * The variables that Kubernetes sets in every pod of a namespace for a Service, and Docker for a link, by the ends of
 * their names: OFFPEAK_PORT=tcp://10.0.0.1:80 is from a Service with the name `offpeak`.
 */
const SERVICE_LINKS: readonly (readonly [name: RegExp, value: RegExp])[] = [
  [/_SERVICE_HOST$/, /^[\d.]+$|^[\da-f:.]*:[\da-f:.]*$/i],
  [/_SERVICE_PORT(?:_[A-Z\d_]+)?$/, /^\d+$/],
  [/_PORT(?:_\d+_(?:TCP|UDP|SCTP))?$/, /^(?:tcp|udp|sctp):\/\//],
  [/_PORT_\d+_(?:TCP|UDP|SCTP)_PROTO$/, /^(?:tcp|udp|sctp)$/],
  [/_PORT_\d+_(?:TCP|UDP|SCTP)_PORT$/, /^\d+$/],
  [/_PORT_\d+_(?:TCP|UDP|SCTP)_ADDR$/, /^[\d.]+$|^[\da-f:.]*:[\da-f:.]*$/i],
]

function isServiceLink(name: string, value: string): boolean {
  return SERVICE_LINKS.some(([names, values]) => names.test(name) && values.test(value))
}

/** Parses YAML. `withLines`: whether messages name places by line and column. */
function parseTree(source: string, name: string, withLines: boolean): Tree {
  const lines = new LineCounter()
  const document = parseDocument(source, { lineCounter: lines, stringKeys: true, prettyErrors: false })
  const at = (offset: number): string => {
    if (!withLines) return `${name}: `
    const { line, col } = lines.linePos(offset)
    return `${name}:${line}:${col}: `
  }
  const broken = [...document.errors, ...document.warnings]
  if (broken.length > 0) {
    throw new ConfigError(broken.map((error) => `${at(error.pos[0])}not valid YAML: ${withoutQuote(error)}`))
  }
  let root: unknown
  try {
    root = document.toJS({ mapAsMap: true })
  } catch (error) {
    throw new ConfigError([`${name}: not valid YAML: ${withoutQuote(error)}`])
  }
  return { root, place: (path) => at(offsetOf(document.contents, path)) }
}

/** A message of the parser without the quoted text at its end, which may be a secret. */
function withoutQuote(error: unknown): string {
  return messageOf(error).replace(/:? *(?:"[\s\S]*|: [\s\S]*)$/, '')
}

/** The offset of the key or item at `path`, or of its nearest existing ancestor. */
function offsetOf(contents: ParsedNode | null, path: Path): number {
  let node: unknown = contents
  let offset = contents?.range[0] ?? 0
  for (const step of path) {
    if (isMap(node)) {
      const pair = node.items.find((item) => isScalar(item.key) && item.key.value === step)
      if (pair === undefined) return offset
      if (isScalar(pair.key)) offset = pair.key.range?.[0] ?? offset
      node = pair.value
    } else if (isSeq(node) && typeof step === 'number') {
      node = node.items[step]
      if (isNode(node)) offset = node.range?.[0] ?? offset
    } else {
      return offset
    }
  }
  return offset
}

// Collects all problems of a configuration, so that the operator can fix them together.

/** The error for an invalid configuration, thrown before anything starts; its message has no secrets. */
export class ConfigError extends ExplainedError {
  /** The problems, one sentence each, beginning with the place: file and line, variable or flag, then the key. */
  readonly problems: readonly string[]

  constructor(problems: readonly string[]) {
    super(
      problems.length === 1
        ? `The configuration is wrong: ${problems[0]}`
        : `The configuration is wrong in ${problems.length} places:\n${problems.map((p) => `  ${p}`).join('\n')}`,
    )
    this.name = 'ConfigError'
    this.problems = problems
  }
}

/** A value in a message: short, and without the secrets of a URL. */
export function shown(value: unknown): string {
  if (value === null || value === undefined) return 'nothing'
  if (Array.isArray(value)) return 'a list'
  if (typeof value === 'object') return 'a map of keys'
  if (typeof value !== 'string') return String(value)
  // A URL may be invalid because its scheme is missing.
  const isBare = !value.includes('://') && /[@?]/.test(value)
  const open = isBare ? withoutUrlSecrets(`://${value}`).slice('://'.length) : withoutUrlSecrets(value)
  return JSON.stringify(open.length > 80 ? `${open.slice(0, 79)}…` : open)
}

/** The value of a variable; undefined if it is empty, as shells and compose files often set it. */
export function present(value: string | undefined): string | undefined {
  const trimmed = value?.trim()
  return trimmed === '' ? undefined : trimmed
}

/** The reason for which a file of the configuration cannot be read; null where it can. */
export function unreadable(path: string): string | null {
  try {
    readFileSync(path)
    return null
  } catch (error) {
    return error instanceof Error && 'code' in error ? String(error.code) : String(error)
  }
}
