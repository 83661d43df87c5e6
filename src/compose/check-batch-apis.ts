// Asks each configured batch API whether it is one and takes the key, and says what to fix where it does not.
import type { BatchApiCheck } from '../admin/compare-remote.ts'
import { BatchApiError } from '../backends/batch-api/batch-api.ts'
import { reasonForOperator } from '../backends/failure-reason.ts'
import type { BatchApiUpstream, Config } from '../config/config.ts'
import { systemClock } from '../domain/clock.ts'
import { withoutUrlSecrets } from '../domain/secret-text.ts'
import { batchApiOf } from './upstreams.ts'

export async function checkBatchApis({ models }: Config): Promise<BatchApiCheck[]> {
  const upstreams = models.flatMap((model) => model.upstreams.filter((one) => one.type === 'openai-batch'))
  const distinct = new Map(upstreams.map((one) => [`${one.name} ${one.base_url}`, one]))
  return await Promise.all(
    [...distinct.values()].map(async (one) => ({
      upstream: one.name,
      base_url: withoutUrlSecrets(one.base_url),
      problem: await problemOf(one),
    })),
  )
}

async function problemOf(upstream: BatchApiUpstream): Promise<string | null> {
  const api = batchApiOf(upstream, systemClock)
  const { api_key, api_key_file } = upstream
  const hasKey = api_key !== null || api_key_file !== null
  try {
    if (await api.hasList()) return null
    return 'there is no batch API: GET /batches is not found. Check base_url; most end in /v1'
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
      return `it is no batch API: ${reasonForOperator(error.result)} at GET /batches. Check base_url; most end in /v1`
    return `${reasonForOperator(error.result)}. Try again later`
  } finally {
    await api.close()
  }
}
