// Opens the database and the blob store that the configuration names, and closes them to other users of the machine.
// Adapters are chosen here and in upstreams.ts.
import { randomBytes } from 'node:crypto'
import { chmodSync, existsSync, readdirSync, type Stats, statSync } from 'node:fs'
import { join } from 'node:path'
import { assertNotFrozen, bindMasterKey } from '../admin/database-freeze.ts'
import { type Blobs, nullIfMissing } from '../blobs/blobs.ts'
import { DiskBlobs } from '../blobs/disk/disk-blobs.ts'
import type { KeyService } from '../blobs/key-service.ts'
import { keyCommand } from '../blobs/key-services/key-command.ts'
import { vaultTransit } from '../blobs/key-services/vault-transit.ts'
import {
  type KeyPlace,
  type MasterKey,
  masterKeyFromText,
  readMasterKey,
  readOrCreateMasterKey,
} from '../blobs/master-key.ts'
import { type SealedBlobs, sealBlobs } from '../blobs/sealed.ts'
import { WatchedBlobs } from '../blobs/watched-blobs.ts'
import { Failure, hasCode } from '../cli/terminal/failure.ts'
import { apiKeyPath, type BlobsConfig, type Config, type EncryptedKey } from '../config/config.ts'
import { COMPAT_MODES } from '../domain/api-key.ts'
import { type Clock, systemClock } from '../domain/clock.ts'
import { messageOf } from '../domain/errors.ts'
import type { Log } from '../domain/log.ts'
import { Session } from '../leases/leases.ts'
import { anyWrappedKey } from '../store/blobs.ts'
import { readProperty, writePropertyOnce } from '../store/database-properties.ts'
import { sharedClock } from '../store/shared-clock.ts'
import { sqliteStore } from '../store/sqlite/store.ts'
import type { Store } from '../store/store.ts'
import type { ServiceStatus } from '../wire/status.ts'
import { makeLog } from './log.ts'

export interface OpenStore extends Store {
  /** The clock that all processes of one database share; every stored or compared time comes from it. */
  readonly clock: Clock
}

export interface Stores {
  store: OpenStore
  blobs: WatchedBlobs
  sealed: SealedBlobs
  master: MasterKey
  /** The name of this database's service in metrics, among others in one Prometheus. */
  installation: string
  /** Removes partial uploads that crashed writers began before `before` (Unix ms). */
  sweepTemporary: (before: number) => Promise<number>
}

/** The longest upload in ms: a multipart upload is dated by its start, and a large file takes long. */
const UPLOAD_MS_MAX = 24 * 60 * 60_000

/** Opens the stores and migrates the schema. Adapters that the configuration does not name are not loaded. */
export async function openStores(config: Config): Promise<Stores> {
  const store = await openDatabase(config)
  try {
    const master = await masterKey(config, store)
    await bindMasterKey(store, master.id)
    const { blobs: opened, sweepTemporary } = await openBlobs(config.blobs)
    const blobs = new WatchedBlobs(opened, systemClock)
    const installation = config.metrics.installation ?? `${config.region}-${await installationId(store)}`
    return { store, blobs, sealed: sealBlobs(blobs, master), master, installation, sweepTemporary }
  } catch (error) {
    await store.close()
    throw error
  }
}

/** The installation's ID: six random characters, drawn once for a database. */
async function installationId(store: Store): Promise<string> {
  const found = await readProperty(store.read, 'installation')
  if (found !== null) return found
  // Another process may have written its own ID first.
  await store.write((tx) => writePropertyOnce(tx, 'installation', randomBytes(3).toString('hex')))
  return await installationId(store)
}

/** Opens the database without the blob store. */
export async function openDatabase(config: Config): Promise<OpenStore> {
  for (const { kept_open, ...found } of closeToOthers(config)) {
    if (kept_open === null)
      makeLog(config).warn(found, 'stored data was readable by other users; restricted its mode')
    else makeLog(config).warn({ ...found, reason: kept_open }, 'stored data is readable by other users')
  }
  const store = await connect(config)
  try {
    await store.migrate()
    // All processes that share a file run on one machine.
    if ('path' in config.database) return Object.assign(store, { clock: systemClock })
    const clock = await sharedClock(store)
    const closeDatabase = store.close
    const close = async (): Promise<void> => {
      clock.stop()
      await closeDatabase()
    }
    // A copy of the store would freeze the value of its getter `failed`.
    return Object.assign(store, { clock, close })
  } catch (error) {
    await store.close()
    throw error
  }
}

/** Throws a Failure where opening the database would create it. */
export function assertDatabaseExists({ database }: Pick<Config, 'database'>): void {
  if (!('path' in database)) return
  try {
    statSync(database.path)
  } catch (error) {
    // A folder of another user is an error.
    if (!hasCode(error, 'ENOENT')) throw error
    throw new Failure(
      `there is no service here, whose database would be ${database.path}; choose one with --data or --config`,
    )
  }
}

async function connect(config: Config): Promise<Store> {
  const { database } = config
  const onWaiting = (error: unknown): void => {
    makeLog(config).warn({ error: messageOf(error) }, 'waiting for the database')
  }
  switch (database.kind) {
    case 'sqlite':
      return sqliteStore({ path: database.path })
    case 'postgres': {
      const { postgresStore } = await import('../store/postgres/store.ts')
      return postgresStore({ url: database.url, onWaiting })
    }
  }
}

export async function openBlobs(
  config: BlobsConfig,
): Promise<Pick<Stores, 'sweepTemporary'> & { blobs: Blobs; identity?: () => Promise<string> }> {
  if (config.kind === 'disk') {
    const disk = new DiskBlobs(config.root)
    return { blobs: disk, sweepTemporary: (before) => disk.sweepTemporary(before) }
  }
  const { S3Blobs } = await import('../blobs/s3/s3-blobs.ts')
  const bucket = new S3Blobs(config)
  await bucket.check()
  const identity = () => bucket.identity()
  return { blobs: bucket, identity, sweepTemporary: (before) => bucket.sweepUploads(before - UPLOAD_MS_MAX) }
}

/**
 * Opens the master key, or creates it on the first start. None is created where the database already has blobs, or
 * where several machines may share the database or a bucket: other machines could not decrypt the blobs of this one.
 */
export async function masterKey(config: Config, store: Store): Promise<MasterKey> {
  const place = await keyPlace(config)
  if (place === null) return masterKeyFromText(config.master_key ?? '', 'OFFPEAK_MASTER_KEY')
  const { path, service } = place
  const shared = 'url' in config.database || config.blobs.kind === 's3'
  if (shared && !existsSync(path))
    throw new Failure(
      service === null
        ? `with PostgreSQL or a bucket, every process needs the same master key: set OFFPEAK_MASTER_KEY (openssl rand -base64 32 makes one), or put the key into ${path}`
        : `with PostgreSQL or a bucket, every process needs the same master key: encrypt one with ${service.name}, and put what that prints into ${path}; docs/configuration.md, "Master key", says how`,
    )
  if ((await anyWrappedKey(store.read)) !== null) return await readMasterKey(path, service)
  return await readOrCreateMasterKey(path, service)
}

/** The file of the master key; null where the key comes from OFFPEAK_MASTER_KEY. */
export async function keyPlace({
  encrypted_key: own,
  master_key,
  data_dir,
}: Config): Promise<KeyPlace | null> {
  if (own === null)
    return master_key === undefined ? { path: join(data_dir, 'master-key'), service: null } : null
  return { path: own.path, service: await keyService(own) }
}

async function keyService(own: EncryptedKey): Promise<KeyService> {
  switch (own.by) {
    case 'aws_kms':
      return (await import('../blobs/key-services/aws-kms.ts')).awsKms(own)
    case 'vault_transit':
      return vaultTransit(own)
    case 'command':
      return keyCommand(own)
  }
}

/** The clock skew in ms above which a warning is logged: the machine's clock dates its logs. */
const CLOCK_SKEW_MS_MAX = 1_000

/**
 * Registers a process until the session is closed, which must be before the stores are: `rekey` and `migrate-data` then
 * refuse to start. Throws AdminCommandError while an admin command excludes services from the database.
 */
export async function register(
  { store }: Pick<Stores, 'store'>,
  config: Pick<Config, 'worker'>,
  log: Log,
): Promise<Session> {
  const { clock } = store
  const skewMs = systemClock.now() - clock.now()
  if (Math.abs(skewMs) > CLOCK_SKEW_MS_MAX)
    log.warn({ skew_ms: skewMs }, "this machine's clock differs from the database's, which is used")
  const session = new Session({
    ...{ store, clock, log, leaseMs: config.worker.lease_ms },
    role: 'api',
    onRenewed() {},
    onLost() {},
  })
  await session.open()
  try {
    await assertNotFrozen(store.read)
  } catch (error) {
    await session.close()
    throw error
  }
  return session
}

// Checks whether the database and the blob store answer, and how fast, by a cheap read of each.

type StoreHealth = NonNullable<ServiceStatus['service']>['stores'][number]

/** The key of a missing blob, which is read to check the store. */
const NO_BLOB = 'health/none'

export async function storeHealth(
  config: Pick<Config, 'database' | 'blobs'>,
  { store, blobs }: Pick<Stores, 'store'> & { blobs: Pick<Blobs, 'size'> },
): Promise<StoreHealth[]> {
  return await Promise.all([
    probe('database', config.database.kind, () =>
      store.read.selectFrom('projects').select('id').limit(1).execute(),
    ),
    probe('blobs', config.blobs.kind, () => blobs.size(NO_BLOB).catch(nullIfMissing)),
  ])
}

async function probe(
  name: StoreHealth['name'],
  kind: string,
  ask: () => Promise<unknown>,
): Promise<StoreHealth> {
  const began = systemClock.now()
  try {
    await ask()
    return { name, kind, ok: true, latency_ms: systemClock.now() - began, error: null }
  } catch (error) {
    return { name, kind, ok: false, latency_ms: null, error: messageOf(error) }
  }
}

// Only the user that runs a service may read what it stores: folders are 0700 and files 0600, whatever the umask is and
// whichever modes a restored copy had. Blobs are not checked one by one: their folder is closed.

const OTHERS_MAY = 0o077
const STICKY = 0o1000

/** A file or folder that other users could read or write. */
interface OpenToOthers {
  path: string
  /** The octal mode of the file before it was closed to others. */
  mode: string
  /** The reason for which the file was not closed; null: it was closed. */
  kept_open: string | null
}

/** Closes the data folder, the database and the folder of blobs to other users; returns the files that were open. */
export function closeToOthers(config: Config): OpenToOthers[] {
  // Windows has no such bits and reports every file as open to all users.
  if (process.platform === 'win32') return []
  const { data_dir, database, blobs } = config
  const found = [closeFolder(data_dir, ['blobs', 'engines'])]
  if (blobs.kind === 'disk') {
    found.push(closeFolder(blobs.root, ['objects', 'tmp']))
    for (const name of ['objects', 'tmp']) found.push(closed(join(blobs.root, name), 0o700))
  }
  if ('path' in database)
    for (const rest of ['', '-wal', '-shm']) found.push(closed(`${database.path}${rest}`, 0o600))
  for (const compat of [null, ...COMPAT_MODES]) found.push(closed(apiKeyPath(config, compat), 0o600))
  const open = found.filter((one) => one !== null)
  // With database and blobs elsewhere, a data folder created by an orchestrator contains nothing secret.
  return 'path' in database || blobs.kind === 'disk' ? open : open.filter((one) => !one.kept_open)
}

/** Closes a folder to other users, unless it has subfolders other than `ours`, which they may need. */
export function closeFolder(path: string, ours: readonly string[]): OpenToOthers | null {
  const found = statIfThere(path)
  if (found === null || (found.mode & OTHERS_MAY) === 0) return null
  const shared =
    (found.mode & STICKY) !== 0 ||
    readdirSync(path, { withFileTypes: true }).some(
      (entry) => entry.isDirectory() && ![...ours, 'lost+found'].includes(entry.name),
    )
  if (shared)
    return {
      path,
      mode: octal(found),
      kept_open: 'it contains other folders; choose a folder for Offpeak alone',
    }
  return closed(path, 0o700)
}

function closed(path: string, mode: number): OpenToOthers | null {
  const found = statIfThere(path)
  if (found === null || (found.mode & OTHERS_MAY) === 0) return null
  try {
    chmodSync(path, mode)
    return { path, mode: octal(found), kept_open: null }
  } catch (error) {
    return { path, mode: octal(found), kept_open: messageOf(error) }
  }
}

function statIfThere(path: string): Stats | null {
  try {
    return statSync(path, { throwIfNoEntry: false }) ?? null
  } catch {
    // Opening the file later reports the error.
    return null
  }
}

function octal({ mode }: Stats): string {
  return (mode & 0o7777).toString(8).padStart(4, '0')
}
