// The program gives every command a Shell. Functions that declare a command take all of it; the functions that they call
// take only the parts that they use.

import type { BackedUp } from '../admin/backup-blobs.ts'
import type { OutsideChecks, RemoteComparison } from '../admin/compare-remote.ts'
import type { KeyOrder as IssueOrder } from '../admin/create-key.ts'
import type { Examined, Finding } from '../admin/examine.ts'
import type { Moved } from '../admin/migrate-data.ts'
import type { Reconciled } from '../admin/reconcile.ts'
import type { Rekeyed } from '../admin/rekey.ts'
import type { Config } from '../config/config.ts'
import type { ConfigFlags as ConfigOverrides } from '../config/load.ts'
import type { Clock } from '../domain/clock.ts'
import type { SimOptions } from '../domain/simulated-server.ts'
import type { ApiKeyObject } from '../wire/project.ts'
import type { Terminal } from './terminal/terminal.ts'

export interface Shell {
  launch: Launch
  access: Access
  env: Environment
  terminal: Terminal
  clock: Clock
  /** The version of this program. */
  version: string
  /** Aborts at the first SIGINT or SIGTERM after it was first called. */
  interruption(): AbortSignal
  /** Sets the exit code of a command that did not throw; without a call it is 0. */
  exit(code: number): void
}

/** PATH, and the variables that name programs. */
export type Environment = Readonly<Record<string, string | undefined>>

/** OFFPEAK_BASE_URL and OFFPEAK_API_KEY, as main.ts read them. */
export interface Access {
  baseUrl: string | undefined
  apiKey: string | undefined
}

// The functions that the command line calls in the rest of the program. main.ts supplies them, so that cli/
// imports no database, bucket or model server.

export interface Launch {
  /** Throws a ConfigError that names everything that is wrong. */
  loadConfig(flags: ConfigFlags): Config | Promise<Config>
  /** Resolves when the API accepts requests, or when the worker looks for work. */
  serve(config: Config, options: ServeOptions): Promise<Running>
  /** Has the services that use the data folder reload; what each answers, by process ID. */
  reload(config: Config): Promise<ReadonlyMap<string, { error: string | null; needsRestart: string[] }>>
  /** The configuration as a person may see it: its values, and the same as YAML. */
  shownConfig(config: Config): Promise<{ values: object; yaml: string }>
  /** Throws a Failure where there is no database, unless keys are made. */
  keys(config: Config, makes: boolean): Promise<KeyRing>
  sim(options: SimOrder): Promise<{ base_url: string; close(): Promise<void> }>
  /** Opens the stores without repairing anything. */
  doctor(config: Config): Promise<Doctor>
  adminCommands(): Promise<AdminCommands>
}

export interface AdminCommands {
  /** Wraps every key with another master key. */
  rekey(config: Config, order: RekeyOrder): Promise<RekeyReport>
  /** Copies everything from the stores of one configuration to those of another. */
  migrateData(from: Config, to: Config, tell: (text: string) => void): Promise<Moved>
  /** Allows services to use stores again whose content was moved, or was about to be. */
  releaseMoved(config: Config): Promise<void>
  /** Copies database and blobs into the folder `dir` while the service runs. */
  backup(config: Config, dir: string): Promise<BackedUp>
}

export interface RekeyOrder {
  /** A file with the new key, or the name of a variable that holds it; with neither, a new key is generated. */
  toFile?: string | undefined
  toEnv?: string | undefined
  /** The configuration that says where the new key is to be, or is. */
  toConfig?: Config | undefined
  /** Called with the number of keys rewrapped so far. */
  tell: (done: number) => void
}

export interface RekeyReport extends Rekeyed {
  key_id: string
  /** The file that holds the new key; null when a variable holds it. */
  path: string | null
}

/** Examines the stores, which stay open until it is disposed of. */
export interface Doctor extends AsyncDisposable {
  /** Calls `tell` for each finding at once. `quick`: checks that every blob exists, but reads only a few. */
  examine(options: { quick: boolean; tell: (finding: Finding) => void }): Promise<Examined>
  /** Compares the sums of one project, or of all. Throws a Failure when the stores cannot be opened. */
  books(project?: string): Promise<Reconciled>
  /** Asks batch APIs, servers with live traffic and issuers of tokens, and compares the batches at batch APIs with these. */
  remote(): Promise<OutsideChecks & RemoteComparison>
}

/** They take precedence over variables and the file. */
export interface ConfigFlags extends Omit<ConfigOverrides, 'region' | 'log_level'> {
  config?: string | undefined
}

export type Role = 'all' | 'api' | 'worker'

export interface ServeOptions {
  role: Role
  /** The address of an OpenAI-compatible server whose models replace the configured ones. */
  upstream?: string | undefined
  /** The variable that holds the API key of that server. */
  upstreamKeyEnv?: string | undefined
  /** A service of one command: it sends lines of those batches alone that `Running.answer` names. */
  embedded?: {
    /** No other process may use the stores. */
    alone: boolean
  }
  /** Ends the wait for that server. */
  signal?: AbortSignal
  /** Says what is waited for. */
  tell?: (text: string) => void
  /** Reads the configuration again; without it, nothing is reloaded. */
  reload?: () => Config | Promise<Config>
}

export interface Running {
  /** `http://HOST:PORT`, without a slash at its end; null for a worker, which does not listen. */
  readonly url: string | null
  /** Has an embedded service send the lines of this batch, too, or validate this file. */
  answer?(id: string): void
  /** Drains and closes; safe to call twice. */
  stop(): Promise<void>
  /** Settles when everything has stopped; rejects when it stopped because of an error. */
  readonly stopped: Promise<void>
}

/** The API keys of a database, which stays open until they are disposed of. */
export interface KeyRing extends AsyncDisposable {
  /** The database that was made for it; null where there was one. */
  readonly made: string | null
  create(order: KeyOrder): Promise<NewKey>
  /** Newest first. */
  list(): Promise<KeySummary[]>
  /** False when the key does not exist or is already revoked. */
  revoke(id: string): Promise<boolean>
  /** Revokes a subject of tokens (`sub`), or one token (`jti`); false where it is already revoked. */
  revokeTokens(claim: 'sub' | 'jti', value: string): Promise<boolean>
}

/** Without a plan, a project keeps its own, and a new project gets payg. Without scopes: every one but `operator`. */
export type KeyOrder = Omit<IssueOrder, 'plan'> & { plan?: string | undefined }

export interface KeySummary
  extends Pick<
    ApiKeyObject,
    'id' | 'project' | 'scopes' | 'name' | 'issuer' | 'compat' | 'created' | 'revoked_at'
  > {
  plan: string
}

interface NewKey extends KeySummary {
  key: string
}

/** The simulator as a server of its own. */
interface SimOrder extends SimOptions {
  host: string
  port: number
  /** A file to which one line for each request is appended. */
  log_file: string | null
}
