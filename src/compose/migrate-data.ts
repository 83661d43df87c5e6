// Opens both sides of a move.
import { existsSync } from 'node:fs'
import { mkdir } from 'node:fs/promises'
import { join } from 'node:path'
import {
  type Moved,
  migrateData as move,
  type Place,
  releaseMoved as release,
} from '../admin/migrate-data.ts'
import { copyKeyFile } from '../admin/switch-key-file.ts'
import type { Blobs } from '../blobs/blobs.ts'
import { type MasterKey, readMasterKey } from '../blobs/master-key.ts'
import { sealBlobs } from '../blobs/sealed.ts'
import { Failure } from '../cli/terminal/failure.ts'
import type { Config } from '../config/config.ts'
import type { Store } from '../store/store.ts'
import { masterKey, openBlobs, openDatabase } from './stores.ts'

export async function migrateData(from: Config, to: Config, tell: (text: string) => void): Promise<Moved> {
  if (databaseName(from) === databaseName(to))
    throw new Failure(`source and target are the same database (${databaseName(to)})`)
  if (blobsName(from) === blobsName(to))
    throw new Failure(`source and target keep their blobs in the same place (${blobsName(to)})`)
  const source = await openPlace(from)
  try {
    const master = await masterKey(from, source.store)
    const target = await openPlace(to, { config: from, master })
    try {
      return await move(source, target, {
        sealed: sealBlobs(target.blobs, master),
        master_key_id: master.id,
        tell,
      })
    } finally {
      await target.store.close()
    }
  } finally {
    await source.store.close()
  }
}

export async function releaseMoved(config: Config): Promise<void> {
  const place = await openPlace(config)
  try {
    await release(place)
  } finally {
    await place.store.close()
  }
}

/** A source must exist; a target is made, and gets the key of its source unless it has it already. */
async function openPlace(config: Config, source?: { config: Config; master: MasterKey }): Promise<Place> {
  const { database } = config
  if (source === undefined && database.kind === 'sqlite' && !existsSync(database.path))
    throw new Failure(`there is no database at ${database.path}`)
  const store: Store = await openDatabase(config)
  try {
    const { blobs }: { blobs: Blobs } = await openBlobs(config.blobs)
    if (source !== undefined) await shareKey(source, config)
    return { name: `${databaseName(config)} and ${blobsName(config)}`, store, blobs }
  } catch (error) {
    await store.close()
    throw error
  }
}

/** Without it, whoever starts with the target would open nothing. */
async function shareKey(source: { config: Config; master: MasterKey }, target: Config): Promise<void> {
  if (target.master_key !== undefined) return
  const path = join(target.data_dir, 'master-key')
  if (!existsSync(path)) {
    await mkdir(target.data_dir, { recursive: true, mode: 0o700 })
    await copyKeyFile(join(source.config.data_dir, 'master-key'), path)
  }
  const there = await readMasterKey(path)
  if (there.id !== source.master.id)
    throw new Failure(
      `${path} is another master key (${there.id}) than the source's (${source.master.id}): blobs move as they are sealed, so both sides need the same; remove that file, and change the key with "offpeak rekey" afterwards`,
    )
}

/** Without passwords. */
function databaseName({ database }: Pick<Config, 'database'>): string {
  if (database.kind === 'sqlite') return database.path
  const { host, pathname } = new URL(database.url)
  return `postgres://${host}${pathname}`
}

function blobsName({ blobs }: Pick<Config, 'blobs'>): string {
  if (blobs.kind === 'disk') return blobs.root
  return `s3://${[blobs.bucket, blobs.prefix].filter(Boolean).join('/')}${blobs.endpoint === null ? '' : ` at ${blobs.endpoint}`}`
}
