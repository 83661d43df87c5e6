// Opens what the configuration names: the database and the sealed blob store. The only place, with
// upstreams.ts, where adapters are chosen.
import { join } from 'node:path'
import type { Blobs } from '../blobs/blobs.ts'
import { diskBlobs } from '../blobs/disk/disk-blobs.ts'
import { type KeyBox, keyBox } from '../blobs/key-box.ts'
import { type MasterKey, masterKeyFromText, readOrCreateMasterKey } from '../blobs/master-key.ts'
import { type SealedBlobs, sealBlobs } from '../blobs/sealed.ts'
import type { Config } from '../config/config.ts'
import { sqliteStore } from '../store/sqlite/store.ts'
import type { Store } from '../store/store.ts'

export interface Stores {
  store: Store
  blobs: Blobs
  sealed: SealedBlobs
  keys: KeyBox
  /** Removes what writers that died left half written before `before` (Unix ms). */
  sweepTemporary: (before: number) => Promise<number>
}

/** Connects, and brings the schema up to date. */
export async function openStores(config: Config): Promise<Stores> {
  const store = await openDatabase(config)
  if (config.blobs.kind !== 'disk')
    throw new Error('blobs: only a folder ("disk") can be used in this version')
  const master = await masterKey(config)
  const disk = diskBlobs({ root: config.blobs.root })
  return {
    store,
    blobs: disk,
    sealed: sealBlobs(disk, master),
    keys: keyBox(master),
    sweepTemporary: (before) => disk.sweepTemporary(before),
  }
}

/** The database alone, for what needs no blobs. */
export async function openDatabase(config: Config): Promise<Store> {
  if (config.database.kind !== 'sqlite')
    throw new Error('database: only "sqlite" can be used in this version')
  const store = sqliteStore({ path: config.database.path })
  try {
    await store.migrate()
  } catch (error) {
    await store.close()
    throw error
  }
  return store
}

async function masterKey(config: Config): Promise<MasterKey> {
  if (config.master_key !== undefined) return masterKeyFromText(config.master_key, 'OFFPEAK_MASTER_KEY')
  return await readOrCreateMasterKey(join(config.data_dir, 'master-key'))
}
