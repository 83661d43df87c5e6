// Opens the stores for the doctor without creating or repairing anything. A store that cannot be opened is itself a
// finding.
import { compareRemote, type OutsideChecks } from '../admin/compare-remote.ts'
import { type Examined, examine, type Finding } from '../admin/examine.ts'
import { reconcile } from '../admin/reconcile.ts'
import { BatchApiError } from '../backends/batch-api/batch-api.ts'
import { reasonForOperator } from '../backends/failure-reason.ts'
import { MasterKeyError } from '../blobs/master-key.ts'
import { sealBlobs } from '../blobs/sealed.ts'
import type { Doctor } from '../cli/shell.ts'
import { Failure } from '../cli/terminal/failure.ts'
import type { BatchApiUpstream, Config } from '../config/config.ts'
import { systemClock } from '../domain/clock.ts'
import { messageOf } from '../domain/errors.ts'
import { isOfKind } from '../domain/model.ts'
import { withoutUrlSecrets } from '../domain/text.ts'
import { readKeySet } from '../http/access/jwt-identity.ts'
import { readRow } from '../store/rows.ts'
import { DatabaseFailure, SchemaMismatch, type Store } from '../store/store.ts'
import {
  assertDatabaseExists,
  keyPlace,
  masterKey,
  type OpenStore,
  openBlobs,
  openDatabase,
} from './stores.ts'
import { batchApiOf, metricsProblem } from './upstreams.ts'

const NOTHING: Examined = { blobs: 0, opened: 0, bytes_opened: 0 }

export async function doctor(config: Config): Promise<Doctor> {
  assertDatabaseExists(config)
  const opened = await openOrFinding(config)
  if ('finding' in opened) return unopened(opened.finding)
  const { store } = opened
  const sealedBlobs = async () => {
    const { blobs } = await openBlobs(config.blobs)
    return sealBlobs(blobs, await masterKey(config, store))
  }
  return {
    async examine({ quick, tell }) {
      const { blobs, identity } = await openBlobs(config.blobs)
      const advice = 'Where that is another identity than you meant, set the variables of AWS, or unset them.'
      if (identity) tell(note('blobs', `their bucket is opened as ${await identity()}`, advice))
      const opener = await openerOf(config, store, tell)
      const sealed = opener && { sealed: sealBlobs(blobs, opener), master_key_id: opener.id }
      return await examine({ store, blobs, opener: sealed, clock: store.clock }, { quick, tell })
    },
    async books(name) {
      const project = name === undefined ? undefined : await readRow(store.read, 'projects', { name })
      if (name !== undefined && !project) throw new Failure(`there is no project "${name}"`)
      return await reconcile({ store, sealed: await sealedBlobs() }, project?.id)
    },
    remote: async () => ({
      batch_apis: await checkBatchApis(config),
      live_metrics: await checkLiveMetrics(config),
      key_sets: await checkKeySets(config),
      ...(await compareRemote(store.read, await sealedBlobs())),
    }),
    [Symbol.asyncDispose]: () => store.close(),
  }
}

async function openOrFinding(config: Config): Promise<{ store: OpenStore } | { finding: Finding }> {
  try {
    return { store: await openDatabase(config) }
  } catch (error) {
    if (error instanceof SchemaMismatch) throw error
    const { problem, advice } =
      error instanceof DatabaseFailure
        ? error
        : {
            problem: `it cannot be opened (${messageOf(error)})`,
            advice: 'Stop the service and restore the database from a backup.',
          }
    return { finding: { level: 'damage', about: 'database', problem, advice, affects: [] } }
  }
}

function note(about: Finding['about'], problem: string, advice: string): Finding {
  return { level: 'note', about, problem, advice, affects: [] }
}

function unopened(finding: Finding): Doctor {
  const fail = async (): Promise<never> => {
    throw new Failure(`the database: ${finding.problem}; ${finding.advice}`)
  }
  return {
    async examine({ tell }) {
      tell(finding)
      return NOTHING
    },
    books: fail,
    remote: fail,
    async [Symbol.asyncDispose]() {},
  }
}

/** Opens the master key; null, with a finding that gives the reason, where there is none. */
async function openerOf(config: Config, store: Store, tell: (finding: Finding) => void) {
  try {
    const place = await keyPlace(config)
    const master = await masterKey(config, store)
    const advice = 'Each process asks it once, when it starts.'
    if (place?.service) tell(note('master_key', `${place.service.name} has decrypted it`, advice))
    return master
  } catch (error) {
    // The check of the database reports the damage.
    if (error instanceof DatabaseFailure) return null
    if (!(error instanceof MasterKeyError || error instanceof Failure)) throw error
    tell({
      level: 'not set',
      about: 'master_key',
      problem: error.message,
      advice: 'Without the key that sealed them, blobs cannot be decrypted: restore it from a backup.',
      affects: [],
    })
    return null
  }
}

/** Checks that each configured batch API answers as one and accepts the key; the results tell how to fix it. */
async function checkBatchApis({ models }: Config): Promise<OutsideChecks['batch_apis']> {
  const upstreams = models.flatMap((model) => model.upstreams.filter((one) => isOfKind(one, 'batch-api')))
  const distinct = new Map(upstreams.map((one) => [`${one.name} ${one.base_url}`, one]))
  return await Promise.all(
    [...distinct.values()].map(async (one) => ({
      upstream: one.name,
      base_url: withoutUrlSecrets(one.base_url),
      problem: await problemOf(one),
    })),
  )
}

/** Checks that the metrics of each server with live traffic can be read; the results tell how to fix it. */
async function checkLiveMetrics({ models }: Config): Promise<OutsideChecks['live_metrics']> {
  const upstreams = models.flatMap((model) => model.upstreams.filter((one) => isOfKind(one, 'server')))
  return await Promise.all(
    upstreams.flatMap((one) =>
      one.base_url === null || !one.live?.metrics_url
        ? []
        : metricsProblem(one, one.base_url).then((problem) => ({
            upstream: one.name,
            metrics_url: withoutUrlSecrets(one.live?.metrics_url ?? ''),
            problem: problem && `it ${problem}. Check live.metrics`,
          })),
    ),
  )
}

async function checkKeySets({ auth: { jwt } }: Config): Promise<OutsideChecks['key_sets']> {
  if (!jwt) return []
  const problem = await readKeySet(jwt).then(
    () => null,
    (error: unknown) =>
      `they cannot be read (${reasonOf(error)}). Check auth.jwt.jwks_url or auth.jwt.jwks_file`,
  )
  return [{ issuer: jwt.issuer, keys_at: jwt.jwks_url ?? jwt.jwks_file ?? '', problem }]
}

/** The message of a failed fetch's cause, which says more than the error's own. */
function reasonOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  return error.cause instanceof Error ? error.cause.message : error.message
}

async function problemOf(upstream: BatchApiUpstream): Promise<string | null> {
  const api = batchApiOf(upstream, systemClock, { warn() {} })
  const { api_key, api_key_file } = upstream
  const hasKey = api_key !== null || api_key_file !== null
  try {
    if (await api.hasList()) return null
    return `there is no batch API: GET ${api.listPath} is not found. Check base_url; most end in /v1`
  } catch (error) {
    if (!(error instanceof BatchApiError)) throw error
    const { status } = error.result
    if (status === 401 || status === 403)
      return hasKey
        ? `it refuses the key (${status}). Check the key that api_key_env or api_key_file names, and that it may list, create and cancel batches and files`
        : `it asks for a key (${status}). Name it with api_key_env or api_key_file`
    if (status === null)
      return `it cannot be reached (${reasonForOperator(error.result)}). Check base_url, and that it runs`
    if (status === 200)
      return `it is no batch API: ${reasonForOperator(error.result)} at GET ${api.listPath}. Check base_url; most end in /v1`
    return `${reasonForOperator(error.result)}. Try again later`
  } finally {
    await api.close()
  }
}
