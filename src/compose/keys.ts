// Creates, lists and revokes the API keys of a database for the `keys` command.

import { randomUUID } from 'node:crypto'
import { existsSync } from 'node:fs'
import { link, rm, writeFile } from 'node:fs/promises'
import { createKey } from '../admin/create-key.ts'
import { makeFolder } from '../blobs/folders.ts'
import type { KeyOrder, KeyRing, KeySummary } from '../cli/shell.ts'
import { Failure } from '../cli/terminal/failure.ts'
import { apiKeyPath, type Config } from '../config/config.ts'
import { CAPPED_SCOPES, COMPAT_MODES, type CompatMode, PROJECT_SCOPES, SCOPES } from '../domain/api-key.ts'
import { secondsOrNull, unixSeconds } from '../domain/clock.ts'
import { namesIn } from '../domain/text.ts'
import { addKeyLimit } from '../http/routes/limits.ts'
import {
  type KeyWithProject,
  listKeys,
  listProjects,
  readKey,
  revokeKey,
  revokeTokens,
} from '../store/projects.ts'
import { readRow } from '../store/rows.ts'
import type { LimitObject } from '../wire/limit.ts'
import { ServedListings } from './served-listings.ts'
import { assertDatabaseExists, type OpenStore, openDatabase } from './stores.ts'
import { modelsById } from './upstreams.ts'

const PLAN = 'payg'

export async function keys(config: Config, makes: boolean): Promise<KeyRing> {
  if (!makes) assertDatabaseExists(config)
  const { database } = config
  const made = 'path' in database && !existsSync(database.path) ? database.path : null
  const store = await openDatabase(config)
  return {
    made,
    async create(order: KeyOrder) {
      const plan = order.plan ?? PLAN
      if (!config.plans.has(plan)) {
        throw new Failure(
          `there is no plan "${plan}"; the configuration has ${[...config.plans.keys()].join(', ')}`,
        )
      }
      const known = await readRow(store.read, 'projects', { name: order.project })
      if (known && order.plan !== undefined && known.plan !== order.plan) {
        throw new Failure(
          `project "${known.name}" is on plan ${known.plan}; leave --plan out, or choose another project`,
        )
      }
      const { limit, scopes = limit && CAPPED_SCOPES } = order
      let made: LimitObject | undefined
      const { key, id } = await createKey(
        store,
        store.clock,
        config.region,
        { ...order, plan, scopes },
        async (tx, owner) => {
          const { models } = new ServedListings(config.data_dir, store.clock).complete(config)
          if (limit) made = await addKeyLimit(tx, owner, limit, modelsById(models), store.clock.now())
        },
      )
      const row = await readKey(store.read, id)
      if (!row) throw new Error(`key ${id} was not stored`)
      return { ...summary(row), key, ...(made && { limit: made }) }
    },
    list: async () => (await listKeys(store.read)).map(summary),
    revoke: (id) => store.write((tx) => revokeKey(tx, id, store.clock.now())),
    async revokeTokens(claim, value) {
      const issuer = config.auth.jwt?.issuer
      if (issuer === undefined) throw new Failure('no tokens are accepted: the configuration has no auth.jwt')
      const [owner] = await listProjects(store.read)
      if (!owner) throw new Failure('the database has no project yet; start the service first')
      const { isFirst } = await store.write((tx) =>
        revokeTokens(tx, { issuer, claim, value, project_id: owner.id }, store.clock.now()),
      )
      return isFirst
    },
    [Symbol.asyncDispose]: () => store.close(),
  }
}

function summary(row: KeyWithProject): KeySummary {
  return {
    id: row.id,
    project: row.project_name,
    plan: row.plan,
    scopes: namesIn(row.scopes, SCOPES),
    name: row.name,
    ...(row.issuer !== null && { issuer: row.issuer }),
    compat: row.compat,
    created: unixSeconds(row.created),
    revoked_at: secondsOrNull(row.revoked_at),
  }
}

// The first start of a service creates a project, and API keys for it in the data folder.

const PROJECT = 'default'

/**
 * Creates the project `default`, a key with every scope in `DIR/api-key` and one for strict OpenAI clients in
 * `DIR/api-key-openai`, each unless its file exists. Processes that share a PostgreSQL database may have different data
 * folders: only the first process creates keys.
 */
export async function ensureFirstKeys(config: Config, store: OpenStore): Promise<void> {
  const missing = [null, ...COMPAT_MODES].filter((compat) => !existsSync(apiKeyPath(config, compat)))
  if (missing.length === 0) return
  if ('url' in config.database && (await listKeys(store.read)).length > 0) return
  await Promise.all(missing.map((compat) => createFirstKey(config, store, compat)))
}

async function createFirstKey(config: Config, store: OpenStore, compat: CompatMode | null): Promise<void> {
  const path = apiKeyPath(config, compat)
  const plan = config.plans.keys().next().value
  if (plan === undefined) throw new Error('the configuration names no plan')
  const { key } = await createKey(store, store.clock, config.region, {
    project: PROJECT,
    plan,
    compat,
    ...(compat === null
      ? { name: 'made at the first start', scopes: SCOPES }
      : { name: `made at the first start, for clients of ${compat}`, scopes: PROJECT_SCOPES }),
  })
  makeFolder(config.data_dir)
  // The first of several processes that link the file wins, and no reader sees a partly written key.
  const temporary = `${path}.${randomUUID()}`
  try {
    await writeFile(temporary, `${key}\n`, { mode: 0o600, flush: true })
    await link(temporary, path).catch((error: NodeJS.ErrnoException) => {
      if (error.code !== 'EEXIST') throw error
    })
  } finally {
    await rm(temporary, { force: true })
  }
}
