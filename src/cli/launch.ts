// What the command line asks of the rest of the program. main.ts supplies it, so that nothing in cli/ names a
// database, a bucket or a model server.

import type { BackedUp } from '../admin/backup-blobs.ts'
import type { Examined, Finding } from '../admin/examine.ts'
import type { Moved } from '../admin/migrate-data.ts'
import type { Rekeyed } from '../admin/rekey.ts'
import type { Config } from '../config/config.ts'
import type { Scope } from '../domain/api-key.ts'
import type { FaultRates } from '../domain/simulated-fault.ts'
import type { Reconciled } from '../ledger/reconcile.ts'

export interface Launch {
  /** Throws a ConfigError that names everything that is wrong. */
  loadConfig(flags: ConfigFlags): Config | Promise<Config>
  /** Resolves once requests are taken (or, for a worker, once it looks for work). */
  serve(config: Config, options: ServeOptions): Promise<Running>
  keys(config: Config): Promise<KeyRing>
  sim(options: SimOrder): Promise<Running>
  /** Opens the stores as they are found, without mending anything. */
  doctor(config: Config): Promise<Doctor>
  adminCommands(): Promise<AdminCommands>
}

/** Work on the stores as a whole. */
export interface AdminCommands {
  /** Puts everything under another master key. */
  rekey(config: Config, order: RekeyOrder): Promise<RekeyReport>
  /** Copies everything from the stores of one configuration to those of another. */
  migrateData(from: Config, to: Config, tell: (text: string) => void): Promise<Moved>
  /** Lets services run again on stores whose content was moved elsewhere, or was about to be. */
  releaseMoved(config: Config): Promise<void>
  /** Copies database and blobs into the folder `dir` while the service runs. */
  backup(config: Config, dir: string): Promise<BackedUp>
}

export interface RekeyOrder {
  /** A file with the new key, or the name of a variable with it; neither: a fresh one is made. */
  toFile?: string | undefined
  toEnv?: string | undefined
  /** Told how many wrapped keys have been rewritten so far. */
  tell: (done: number) => void
}

export interface RekeyReport extends Rekeyed {
  key_id: string
  /** The file that holds the new key; null where a variable does. */
  path: string | null
}

/** Looks at the stores themselves; held open until `close`. */
export interface Doctor {
  /** Tells of each finding as it is made. `quick`: most blobs are only looked for, not read. */
  examine(options: { quick: boolean; tell: (finding: Finding) => void }): Promise<Examined>
  /** Of the project of that name, or of all. Throws a Failure where the stores cannot be opened. */
  books(project?: string): Promise<Reconciled>
  close(): Promise<void>
}

/** Flags that beat variables and file. */
export interface ConfigFlags {
  config?: string | undefined
  data?: string | undefined
  host?: string | undefined
  port?: string | undefined
  database?: string | undefined
  blobs?: string | undefined
  /** How many worker processes, or `auto`. */
  workers?: string | undefined
}

export type Role = 'all' | 'api' | 'worker'

export interface ServeOptions {
  role: Role
  /** An OpenAI-compatible address whose models take the place of the configured ones. */
  upstream?: string | undefined
}

export interface Running {
  /** `http://HOST:PORT`, without a slash at its end; null for a worker, which listens to nobody. */
  readonly url: string | null
  /** Drains and closes; safe to call twice. */
  stop(): Promise<void>
  /** Settles when everything has ended, and rejects when it ended by a fault. */
  readonly stopped: Promise<void>
}

/** The keys of a database, held open until `close`. */
export interface KeyRing {
  create(order: KeyOrder): Promise<NewKey>
  /** Newest first. */
  list(): Promise<KeySummary[]>
  /** False when there is no such key, or it was revoked before. */
  revoke(id: string): Promise<boolean>
  close(): Promise<void>
}

export interface KeyOrder {
  /** The project's name; it is made if it does not exist. */
  project: string
  /** Left out: the project keeps its plan, and a new one is on payg. */
  plan?: string | undefined
  /** Left out: every scope. */
  scopes?: readonly Scope[] | undefined
  name?: string | undefined
}

export interface KeySummary {
  id: string
  project: string
  plan: string
  scopes: readonly Scope[]
  name: string | null
  /** Unix seconds. */
  created: number
  revoked_at: number | null
}

export interface NewKey extends KeySummary {
  /** The key itself, shown this once. */
  key: string
}

/** The simulator as a server of its own. */
export interface SimOrder {
  host: string
  port: number
  latency_ms: { min: number; max: number }
  capacity: number | null
  /** Tokens; null: unbounded. */
  context_window: number | null
  faults: FaultRates
  seed: number
  /** Null: any model that is asked for. */
  models: readonly string[] | null
  /** One line for each request is appended here. */
  log: string | null
}
