// The configuration in three steps: file, variables and flags; checked and typed settings; secrets. Every
// problem of the second and third step is reported at once.
import { systemClock } from '../domain/clock.ts'
import type { Config } from './config.ts'
import { ConfigError } from './config-error.ts'
import { crossCheck } from './cross-check.ts'
import { nearest } from './nearest.ts'
import { withSecrets } from './secrets.ts'
import { Reading } from './section.ts'
import { readSettings } from './settings.ts'
import { offpeakVariables, readConfigFile, type Sources } from './sources.ts'

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

const FLAG_PATHS: Record<keyof ConfigFlags, string> = {
  region: 'region',
  host: 'listen.host',
  port: 'listen.port',
  data: 'data_dir',
  database: 'database',
  blobs: 'blobs',
  log_level: 'log.level',
  workers: 'worker.processes',
}

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

/** Variables that other parts of the command line read, not the service. */
const OTHER_VARIABLES = ['OFFPEAK_BASE_URL', 'OFFPEAK_API_KEY', 'OFFPEAK_MASTER_KEY', 'OFFPEAK_CONFIG']

/** What only the tests look at: it may be set while they start a service. */
const TEST_VARIABLES = 'OFFPEAK_TEST_'

/** Throws a ConfigError that names everything that is wrong. */
export function loadConfig(request: ConfigRequest): Config {
  const cwd = request.cwd ?? process.cwd()
  const variables = offpeakVariables(request.env)
  const file = readConfigFile(request.file, variables.get('OFFPEAK_CONFIG'), cwd)
  const reading = new Reading({ file, variables, flags: flagsByPath(request.overrides ?? {}) })
  const settings = reading.read((root) => readSettings(root, cwd, request.now ?? systemClock.now()))
  refuseUnknownVariables(reading, variables)
  // Values that were refused have left stand-ins behind, which would only fail again.
  if (reading.problems.length === 0) reading.problems.push(...crossCheck(settings))
  const config = withSecrets(settings, request.env, reading.problems)
  if (reading.problems.length > 0) throw new ConfigError(reading.problems)
  return config
}

function flagsByPath(flags: ConfigFlags): Sources['flags'] {
  const by_path = new Map<string, { name: string; text: string }>()
  const set = (flag: keyof ConfigFlags, value: string | number | undefined): void => {
    if (value === undefined) return
    by_path.set(FLAG_PATHS[flag], { name: `--${flag.replaceAll('_', '-')}`, text: String(value) })
  }
  set('region', flags.region)
  set('host', flags.host)
  set('port', flags.port)
  set('data', flags.data)
  set('database', flags.database)
  set('blobs', flags.blobs)
  set('log_level', flags.log_level)
  set('workers', flags.workers)
  return by_path
}

function refuseUnknownVariables(reading: Reading, variables: ReadonlyMap<string, string>): void {
  const known = new Set<string>(OTHER_VARIABLES)
  for (const variable of reading.keys.values()) if (variable !== null) known.add(variable)
  for (const name of variables.keys()) {
    if (known.has(name) || name.startsWith(TEST_VARIABLES)) continue
    const close = nearest(name, known)
    reading.problems.push(
      `${name}: unknown variable${close === null ? '; docs/configuration.md lists them all' : `; did you mean ${close}?`}`,
    )
  }
}
