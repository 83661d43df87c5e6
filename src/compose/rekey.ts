// Changes the master key: where the new one comes from, and whose file takes whose place.
import { existsSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { readFreeze } from '../admin/database-freeze.ts'
import { assertSameMasterKey } from '../admin/one-master-key.ts'
import { endRekey, rekey as rewrapAll } from '../admin/rekey.ts'
import {
  copyKeyFile,
  nextKeyPath,
  oldKeyPath,
  retireKeyFile,
  switchKeyFile,
} from '../admin/switch-key-file.ts'
import {
  type MasterKey,
  masterKeyFromText,
  readMasterKey,
  readOrCreateMasterKey,
} from '../blobs/master-key.ts'
import type { RekeyOrder, RekeyReport } from '../cli/launch.ts'
import { Failure } from '../cli/terminal/failure.ts'
import type { Config } from '../config/config.ts'
import type { Store } from '../store/store.ts'
import { masterKey, openBlobs, openDatabase } from './stores.ts'

/** `variable` looks into the environment. */
export async function rekey(
  config: Config,
  { toFile, toEnv, tell }: RekeyOrder,
  variable: (name: string) => string | undefined,
): Promise<RekeyReport> {
  const path = join(config.data_dir, 'master-key')
  const in_file = config.master_key === undefined
  if (!in_file && toFile === undefined && toEnv === undefined)
    throw new Failure(
      'the master key comes from OFFPEAK_MASTER_KEY: name the new one with --to-env NAME or --to-file FILE',
    )
  const store = await openDatabase(config)
  try {
    const { blobs } = await openBlobs(config.blobs)
    const why = await readFreeze(store.read)
    const resumed = why?.by === 'rekey' ? why : null
    const present = await presentKey(config, store, path)
    // The file may have been replaced by a run that was interrupted right after.
    if (present && resumed?.to === present.id) {
      const done = await rewrapAll({ store, blobs }, { from: null, to: present }, { tell })
      return await end(store, { ...done, key_id: present.id, path: in_file ? path : null })
    }
    const to = await newKey(path, in_file, toFile, toEnv, variable)
    // A file that was retired for a variable is gone from its place; the old key lies beside it.
    const from = present ?? (resumed ? await readMasterKey(oldKeyPath(path)) : null)
    if (from === null) throw new Failure(`there is no master key at ${path} that could be changed`)
    if (resumed === null) await assertSameMasterKey(store.read, from.id)
    const done = await rewrapAll({ store, blobs }, { from, to }, { tell })
    if (in_file && toEnv === undefined) {
      await switchKeyFile(path)
      if ((await readMasterKey(path)).id !== to.id)
        throw new Failure(`${path} does not hold the new key; put it there, then run this again`)
    } else if (in_file && present) await retireKeyFile(path)
    return await end(store, { ...done, key_id: to.id, path: in_file && toEnv === undefined ? path : null })
  } finally {
    await store.close()
  }
}

async function presentKey(config: Config, store: Store, path: string): Promise<MasterKey | null> {
  if (config.master_key === undefined && !existsSync(path)) return null
  return await masterKey(config, store)
}

/** With the key in a file, the new one is laid beside it first: whatever happens, it is not lost. */
async function newKey(
  path: string,
  in_file: boolean,
  toFile: string | undefined,
  toEnv: string | undefined,
  variable: (name: string) => string | undefined,
): Promise<MasterKey> {
  if (toEnv !== undefined) {
    const text = variable(toEnv)
    if (text === undefined) throw new Failure(`the variable ${toEnv} is not set`)
    return masterKeyFromText(text, toEnv)
  }
  if (toFile === undefined) return await readOrCreateMasterKey(nextKeyPath(path))
  const given = await readMasterKey(resolve(toFile))
  return in_file ? await copyKeyFile(resolve(toFile), nextKeyPath(path)) : given
}

async function end(store: Store, report: RekeyReport): Promise<RekeyReport> {
  await endRekey(store, report.key_id)
  return report
}
