// Loads the configuration: reads file, variables and flags by the schema, reports every problem at once, and makes
// the typed configuration, secrets included.
import { systemClock } from '../domain/clock.ts'
import type { Config } from './config.ts'
import { keysOf, nearest, readShape } from './read-shape.ts'
import { CONFIG_FILE } from './schema.ts'
import { crossCheck, toConfig } from './settings.ts'
import { ConfigError, offpeakVariables, readConfigFile, type Sources } from './sources.ts'
import { tracingFromEnv } from './tracing.ts'

/** Flags of the command line that beat variables and file. */
export interface ConfigFlags {
  region?: string | undefined
  host?: string | undefined
  port?: string | number | undefined
  data?: string | undefined
  database?: string | undefined
  blobs?: string | undefined
  log_level?: string | undefined
  workers?: string | undefined
}

const FLAG_PATHS: readonly (readonly [keyof ConfigFlags, string])[] = [
  ['region', 'region'],
  ['host', 'listen.host'],
  ['port', 'listen.port'],
  ['data', 'data_dir'],
  ['database', 'database'],
  ['blobs', 'blobs'],
  ['log_level', 'log.level'],
  ['workers', 'worker.processes'],
]

export interface ConfigRequest {
  /** `--config`; without it OFFPEAK_CONFIG, else offpeak.yaml in the working directory if there is one. */
  file?: string | undefined
  env: NodeJS.ProcessEnv
  overrides?: ConfigFlags
  /** Relative paths are taken from here; the working directory by default. */
  cwd?: string
  /** Unix ms; when the models say they were created. */
  now?: number
}

/** Variables that are not keys of the configuration. */
const OTHER_VARIABLES = [
  'OFFPEAK_BASE_URL',
  'OFFPEAK_API_KEY',
  'OFFPEAK_MASTER_KEY',
  'OFFPEAK_CONFIG',
  // Programs that `run` starts.
  'OFFPEAK_LLAMA_SERVER',
  'OFFPEAK_VLLM',
  'OFFPEAK_SGLANG',
  'OFFPEAK_OLLAMA',
  'OFFPEAK_MLX',
]

/** Read by tests alone; may be set while they start a service. */
const TEST_VARIABLES = 'OFFPEAK_TEST_'

/** Throws a ConfigError that names everything that is wrong. */
export function loadConfig(request: ConfigRequest): Config {
  const { env, overrides = {}, cwd = process.cwd() } = request
  const variables = offpeakVariables(env)
  const file = readConfigFile(request.file, variables.get('OFFPEAK_CONFIG'), cwd)
  const problems: string[] = []
  const values = readShape(CONFIG_FILE, { file, variables, flags: flagsByPath(overrides), env }, problems)
  refuseUnknownVariables(variables, problems)
  const tracing = tracingFromEnv(env, problems)
  if (problems.length > 0) throw new ConfigError(problems)
  const config = toConfig(values, env, cwd, request.now ?? systemClock.now(), tracing)
  const contradictions = crossCheck(config)
  if (contradictions.length > 0) throw new ConfigError(contradictions)
  return config
}

function flagsByPath(flags: ConfigFlags): Sources['flags'] {
  const byPath = new Map<string, { name: string; text: string }>()
  for (const [flag, path] of FLAG_PATHS) {
    const value = flags[flag]
    if (value !== undefined) byPath.set(path, { name: `--${flag.replaceAll('_', '-')}`, text: String(value) })
  }
  return byPath
}

function refuseUnknownVariables(variables: ReadonlyMap<string, string>, problems: string[]): void {
  const known = new Set<string>(OTHER_VARIABLES)
  for (const variable of keysOf(CONFIG_FILE).values()) if (variable !== null) known.add(variable)
  for (const name of variables.keys()) {
    if (known.has(name) || name.startsWith(TEST_VARIABLES)) continue
    const close = nearest(name, known)
    problems.push(
      `${name}: unknown variable${close === null ? '; docs/configuration.md lists them all' : `; did you mean ${close}?`}`,
    )
  }
}
