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
import type { CreateKeyLimit, LimitObject } from '../wire/limit.ts'
import type { ApiKeyObject } from '../wire/project.ts'
import type { Terminal } from './terminal/terminal.ts'

export interface Shell {
  launch: Launch
  access: Access
  env: Environment
  terminal: Terminal
  clock: Clock
  version: string
  /** Aborts at the first SIGINT or SIGTERM after its first call. */
  interruption(): AbortSignal
  /** Sets the exit code of a command that does not throw; without a call it is 0. */
  exit(code: number): void
}

/** The environment: PATH, and the variables that name programs. */
export type Environment = Readonly<Record<string, string | undefined>>

/** The values of OFFPEAK_BASE_URL and OFFPEAK_API_KEY. */
export interface Access {
  baseUrl: string | undefined
  apiKey: string | undefined
}

// The functions that the command line calls in the rest of the program. main.ts supplies them, so that cli/
// imports no database, bucket or model server.

export interface Launch {
  /** Loads the configuration. Throws a ConfigError that names every problem. */
  loadConfig(flags: ConfigFlags): Config | Promise<Config>
  /** Starts a service. Resolves when the API accepts requests, or when the worker claims work. */
  serve(config: Config, options: ServeOptions): Promise<Running>
  /** Makes the services of the data folder reload; the answers by process ID. */
  reload(config: Config): Promise<ReadonlyMap<string, { error: string | null; needsRestart: string[] }>>
  /** The configuration without secrets: its values, and the same as YAML. */
  shownConfig(config: Config): Promise<{ values: object; yaml: string }>
  /** Opens the API keys. Throws a Failure where there is no database, unless `makes`. */
  keys(config: Config, makes: boolean): Promise<KeyRing>
  sim(options: SimOrder): Promise<{ base_url: string; close(): Promise<void> }>
  /** Opens the stores for the doctor without repairing anything. */
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
  /** A file with the new key, or the name of a variable with it; with neither, a new key is generated. */
  toFile?: string | undefined
  toEnv?: string | undefined
  /** The configuration that names the place of the new key. */
  toConfig?: Config | undefined
  /** Called with the number of keys that are rewrapped so far. */
  tell: (done: number) => void
}

export interface RekeyReport extends Rekeyed {
  key_id: string
  /** The file with the new master key; null when a variable has it. */
  path: string | null
}

/** Examines the stores, which stay open until it is disposed of. */
export interface Doctor extends AsyncDisposable {
  /** Calls `tell` with each finding at once. `quick`: checks that every blob exists, but reads only a few. */
  examine(options: { quick: boolean; tell: (finding: Finding) => void }): Promise<Examined>
  /** Compares the sums of one project, or of all. Throws a Failure when the stores cannot be opened. */
  books(project?: string): Promise<Reconciled>
  /** Asks batch APIs, servers with live traffic and issuers of tokens, and compares the batches at batch APIs with these. */
  remote(): Promise<OutsideChecks & RemoteComparison>
}

/** Flags of the configuration, which win over variables and the file. */
export interface ConfigFlags extends Omit<ConfigOverrides, 'region' | 'log_level'> {
  config?: string | undefined
}

/** The flags of a command that prints JSON where asked. */
export interface JsonFlags extends ConfigFlags {
  json?: boolean
}

export type Role = 'all' | 'api' | 'worker'

export interface UpstreamFlags {
  /** The URL of an OpenAI-compatible server whose models replace the configured ones. */
  upstream?: string | undefined
  /** The variable with the API key of the server of `upstream`. */
  upstreamKeyEnv?: string | undefined
}

export interface ServeOptions extends UpstreamFlags {
  role: Role
  /** The rules of a service of one command, which sends only lines of batches that `Running.answer` names. */
  embedded?: {
    /** Whether no other process may use the stores. */
    alone: boolean
  }
  /** Ends the wait for the server of `upstream`. */
  signal?: AbortSignal
  /** Reports that the start waits for the server. */
  tell?: (text: string) => void
  /** Reads the configuration again; absent: nothing is reloaded. */
  reload?: () => Config | Promise<Config>
}

export interface Running {
  /** The URL `http://HOST:PORT`, without a slash at its end; null for a worker, which does not listen. */
  readonly url: string | null
  /** Makes an embedded service also send the lines of this batch, or validate this file. */
  answer?(id: string): void
  /** Drains the running service and closes it; safe to call twice. */
  stop(): Promise<void>
  /** Settles when everything has stopped; rejects when it stopped because of an error. */
  readonly stopped: Promise<void>
}

/** The API keys of a database, which stays open until they are disposed of. */
export interface KeyRing extends AsyncDisposable {
  /** The path of the database that was created for the first key; null where it existed. */
  readonly made: string | null
  create(order: KeyOrder): Promise<NewKey>
  /** Lists the API keys, newest first. */
  list(): Promise<KeySummary[]>
  /** Revokes a key; false when it does not exist or is already revoked. */
  revoke(id: string): Promise<boolean>
  /** Revokes a subject of tokens (`sub`), or one token (`jti`); false where it is already revoked. */
  revokeTokens(claim: 'sub' | 'jti', value: string): Promise<boolean>
}

/** An order of a key. By default a project keeps its plan, a new one gets payg, and scopes are all but `operator`. */
export type KeyOrder = Omit<IssueOrder, 'plan'> & {
  plan?: string | undefined
  /** A cap on what is spent with the key; by default such a key lacks `limits:write` as well. */
  limit?: CreateKeyLimit | undefined
}

export interface KeySummary
  extends Pick<
    ApiKeyObject,
    'id' | 'project' | 'scopes' | 'name' | 'issuer' | 'compat' | 'created' | 'revoked_at'
  > {
  plan: string
}

interface NewKey extends KeySummary {
  key: string
  limit?: LimitObject
}

/** The options of a simulated server. */
interface SimOrder extends SimOptions {
  host: string
  port: number
  /** The file to which one line per request is appended; null: none. */
  log_file: string | null
}
