// Opens the stores for the admin commands that treat them as a whole: backup, rekey and migrate-data.
import { existsSync, realpathSync } from 'node:fs'
import { join, resolve, sep } from 'node:path'
import { type BackedUp, backupBlobs } from '../admin/backup-blobs.ts'
import { assertSameMasterKey, readFreeze } from '../admin/database-freeze.ts'
import {
  type Moved,
  migrateData as move,
  type Place,
  releaseMoved as release,
} from '../admin/migrate-data.ts'
import {
  endRekey,
  nextKeyPath,
  oldKeyPath,
  retireKeyFile,
  rekey as rewrapAll,
  switchKeyFile,
} from '../admin/rekey.ts'
import { DiskBlobs } from '../blobs/disk/disk-blobs.ts'
import { makeFolder } from '../blobs/folders.ts'
import {
  type KeyPlace,
  type MasterKey,
  masterKeyFromText,
  readMasterKey,
  readOrCreateMasterKey,
  writeMasterKey,
} from '../blobs/master-key.ts'
import { sealBlobs } from '../blobs/sealed.ts'
import type { AdminCommands, RekeyOrder, RekeyReport } from '../cli/shell.ts'
import { Failure } from '../cli/terminal/failure.ts'
import type { Config } from '../config/config.ts'
import { withoutUrlSecrets } from '../domain/text.ts'
import { copySqlite, lockFile, removeSqlite, replaceSqlite } from '../store/sqlite/database.ts'
import { sqliteStore } from '../store/sqlite/store.ts'
import type { Store } from '../store/store.ts'
import { assertDatabaseExists, closeFolder, keyPlace, masterKey, openBlobs, openDatabase } from './stores.ts'

/** Makes the admin commands. `variable` reads a variable of the environment. */
export function adminCommands(variable: (name: string) => string | undefined): AdminCommands {
  return { rekey: (config, order) => rekey(config, order, variable), migrateData, releaseMoved, backup }
}

/** Copies the data folder to `dir`, complete except for the master key. */
export async function backup(config: Config, dir: string): Promise<BackedUp> {
  const { database } = config
  if (!('path' in database))
    throw new Failure(
      'PostgreSQL is backed up by its own tools (pg_dump, or base backups with WAL archiving) and a bucket by versioning; see docs/backup.md',
    )
  assertDatabaseExists(config)
  const folder = resolve(dir)
  makeFolder(folder)
  const path = join(folder, 'offpeak.db')
  if (isSame(folder, config.data_dir) || isSame(path, database.path))
    throw new Failure('the backup folder must not be the data folder')
  const blobsRoot = join(folder, 'blobs')
  if (config.blobs.kind === 'disk') {
    // The backup lacks blobs that the copied database lacks; in the service's own folder, blobs would be lost.
    const { root } = config.blobs
    if (isSame(blobsRoot, root) || isBelow(folder, root))
      throw new Failure(
        `a backup to ${folder} would mix with the blobs of the service, in ${root}; choose another folder`,
      )
  }
  closeFolder(blobsRoot, ['objects', 'tmp'])
  using lock = lockFile(join(folder, 'backup.lock'))
  if (lock === null) throw new Failure(`another backup to ${folder} is running; wait until it has finished`)
  const next = `${path}.next`
  const { blobs } = await openBlobs(config.blobs)
  await using ends = new AsyncDisposableStack()
  ends.defer(() => removeSqlite(next))
  const live = ends.use(sqliteStore({ path: database.path }))
  return await backupBlobs({
    from: blobs,
    to: new DiskBlobs(blobsRoot),
    live,
    async copyDatabase() {
      await copySqlite(database.path, next)
      return sqliteStore({ path: next })
    },
    async publish() {
      if (!(await replaceSqlite(next, path)))
        throw new Failure(
          `a process uses ${path}, so the earlier backup was not replaced; choose another folder`,
        )
      return sqliteStore({ path })
    },
  })
}

function isSame(one: string, other: string): boolean {
  return existsSync(one) && existsSync(other) && realpathSync(one) === realpathSync(other)
}

function isBelow(folder: string, root: string): boolean {
  return existsSync(root) && `${realpathSync(folder)}${sep}`.startsWith(`${realpathSync(root)}${sep}`)
}

export async function migrateData(from: Config, to: Config, tell: (text: string) => void): Promise<Moved> {
  if (databaseName(from) === databaseName(to))
    throw new Failure(`source and target are the same database (${databaseName(to)})`)
  if (blobsName(from) === blobsName(to))
    throw new Failure(`source and target use the same blob store (${blobsName(to)})`)
  const source = await openPlace(from)
  await using _source = source.store
  const master = await masterKey(from, source.store)
  const target = await openPlace(to, { config: from, master })
  await using _target = target.store
  return await move(source, target, {
    sealed: sealBlobs(target.blobs, master),
    master_key_id: master.id,
    tell,
  })
}

async function releaseMoved(config: Config): Promise<void> {
  const place = await openPlace(config)
  await using _store = place.store
  await release(place)
}

/** Opens a source, which must exist, or creates a target with the master key of `source`. */
async function openPlace(config: Config, source?: { config: Config; master: MasterKey }): Promise<Place> {
  if (source === undefined) assertDatabaseExists(config)
  const store = await openDatabase(config)
  try {
    const { blobs } = await openBlobs(config.blobs)
    if (source !== undefined) await shareKey(source, config)
    return { name: `${databaseName(config)} and ${blobsName(config)}`, store, blobs }
  } catch (error) {
    await store.close()
    throw error
  }
}

/** Gives the target the source's master key, because encrypted blobs are copied unchanged. */
async function shareKey(source: { config: Config; master: MasterKey }, target: Config): Promise<void> {
  const place = await keyPlace(target)
  if (place === null) return
  const { path } = place
  if (!existsSync(path)) await writeMasterKey(place, source.master.secret.export())
  const there = await readMasterKey(path, place.service)
  if (there.id !== source.master.id)
    throw new Failure(
      `the master key in ${path} (${there.id}) is not the source's (${source.master.id}): blobs are copied without being decrypted, so both sides need the same key; remove that file, and change the key with "offpeak rekey" afterwards`,
    )
}

/** The name of the database in messages, without a password. */
function databaseName({ database }: Pick<Config, 'database'>): string {
  if ('path' in database) return database.path
  const { host, pathname } = new URL(database.url)
  return `${database.kind}://${host}${pathname}`
}

function blobsName({ blobs }: Pick<Config, 'blobs'>): string {
  if (blobs.kind === 'disk') return blobs.root
  return `s3://${[blobs.bucket, blobs.prefix].filter(Boolean).join('/')}${blobs.endpoint === null ? '' : ` at ${withoutUrlSecrets(blobs.endpoint)}`}`
}

export async function rekey(
  config: Config,
  { toFile, toEnv, toConfig, tell }: RekeyOrder,
  variable: (name: string) => string | undefined,
): Promise<RekeyReport> {
  const place = await keyPlace(config)
  if (place === null && toFile === undefined && toEnv === undefined && toConfig === undefined)
    throw new Failure(
      'the master key comes from OFFPEAK_MASTER_KEY: name the new one with --to-env NAME, --to-file FILE or --to-config FILE',
    )
  assertDatabaseExists(config)
  await using store = await openDatabase(config)
  const { blobs } = await openBlobs(config.blobs)
  const freeze = await readFreeze(store.read)
  const resumed = freeze?.by === 'rekey' ? freeze : null
  const present = place !== null && !existsSync(place.path) ? null : await masterKey(config, store)
  // An interrupted run may have replaced the key file and not yet rewrapped all keys.
  if (present && resumed?.to === present.id) {
    const done = await rewrapAll({ store, blobs }, { from: null, to: present }, { tell })
    return await end(store, { ...done, key_id: present.id, path: place?.path ?? null })
  }
  const target = toConfig ? await keyPlace(toConfig) : toEnv === undefined ? place : null
  const isSameFile = target !== null && target.path === place?.path
  const next = isSameFile ? { ...target, path: nextKeyPath(target.path) } : target
  const to = await newKey(next, { toFile, toEnv, toConfig }, variable)
  // An interrupted run that removed the key from its file has kept the old key beside it.
  const from =
    present ?? (resumed && place ? await readMasterKey(oldKeyPath(place.path), place.service) : null)
  if (from === null) throw new Failure(`there is no master key at ${place?.path} to replace`)
  if (resumed === null) await assertSameMasterKey(store.read, from.id)
  const done = await rewrapAll({ store, blobs }, { from, to }, { tell })
  if (isSameFile && place) {
    await switchKeyFile(place.path, place.service)
    if ((await readMasterKey(target.path, target.service)).id !== to.id)
      throw new Failure(`${target.path} does not hold the new key; put it there, then run this again`)
  } else if (place && present) await retireKeyFile(place)
  return await end(store, { ...done, key_id: to.id, path: target?.path ?? null })
}

/** Makes the new master key; one for a file is first written beside the old one, so that a crash cannot lose it. */
async function newKey(
  next: KeyPlace | null,
  { toFile, toEnv, toConfig }: Omit<RekeyOrder, 'tell'>,
  variable: (name: string) => string | undefined,
): Promise<MasterKey> {
  if (toEnv !== undefined) {
    const text = variable(toEnv)
    if (text === undefined) throw new Failure(`the variable ${toEnv} is not set`)
    return masterKeyFromText(text, toEnv)
  }
  if (toFile !== undefined) {
    const given = await readMasterKey(resolve(toFile))
    if (next === null) return given
    await writeMasterKey(next, given.secret.export())
    return await readMasterKey(next.path, next.service)
  }
  if (next !== null) return await readOrCreateMasterKey(next.path, next.service)
  return masterKeyFromText(toConfig?.master_key ?? '', 'OFFPEAK_MASTER_KEY')
}

async function end(store: Store, report: RekeyReport): Promise<RekeyReport> {
  await endRekey(store, report.key_id)
  return report
}
