// The first start of a service creates a project, and an API key for it in the data folder.

import { randomUUID } from 'node:crypto'
import { existsSync } from 'node:fs'
import { link, mkdir, unlink, writeFile } from 'node:fs/promises'
import { createKey } from '../admin/create-key.ts'
import { apiKeyPath } from '../config/api-key-path.ts'
import type { Config } from '../config/config.ts'
import { SCOPES } from '../domain/api-key.ts'
import { listKeys } from '../store/api-keys.ts'
import type { OpenStore } from './stores.ts'

const PROJECT = 'default'

/**
 * Creates the project `default` and a key with every scope, unless `DIR/api-key` exists. Processes that share a
 * PostgreSQL database may each have a data folder of their own: only the first of them creates a key.
 */
export async function ensureFirstKey(config: Config, store: OpenStore): Promise<void> {
  const path = apiKeyPath(config)
  if (existsSync(path)) return
  if (config.database.kind === 'postgres' && (await listKeys(store.read)).length > 0) return
  const plan = config.plans.keys().next().value
  if (plan === undefined) throw new Error('the configuration names no plan')
  const { key } = await createKey(store, store.clock, config.region, {
    project: PROJECT,
    plan,
    name: 'made at the first start',
    scopes: SCOPES,
  })
  await mkdir(config.data_dir, { recursive: true, mode: 0o700 })
  // Of processes that start at the same time, the first link wins, and no reader sees a partly written key.
  const temporary = `${path}.${randomUUID()}`
  await writeFile(temporary, `${key}\n`, { mode: 0o600, flush: true })
  await link(temporary, path).catch((error: NodeJS.ErrnoException) => {
    if (error.code !== 'EEXIST') throw error
  })
  await unlink(temporary)
}
