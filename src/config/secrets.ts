// Looks up what the configuration only names: values of the environment. No secret is ever part of a message.
import { readFileSync } from 'node:fs'
import type { S3Config } from './config.ts'
import type { S3Address } from './store-addresses.ts'

/** `bucket` with its credentials, which have been checked to be there. */
export function withCredentials(bucket: S3Address, env: NodeJS.ProcessEnv): S3Config {
  return {
    ...bucket,
    region: bucket.region ?? present(env.AWS_REGION) ?? present(env.AWS_DEFAULT_REGION) ?? 'us-east-1',
    access_key_id: present(env.AWS_ACCESS_KEY_ID) ?? '',
    secret_access_key: present(env.AWS_SECRET_ACCESS_KEY) ?? '',
    session_token: present(env.AWS_SESSION_TOKEN) ?? null,
  }
}

/** Shells and compose files often set a variable to nothing, which counts as not set. */
export function present(value: string | undefined): string | undefined {
  const trimmed = value?.trim()
  return trimmed === '' ? undefined : trimmed
}

/** Why a file that the configuration names cannot be read; null where it can. */
export function unreadable(path: string): string | null {
  try {
    readFileSync(path)
    return null
  } catch (error) {
    return error instanceof Error && 'code' in error ? String(error.code) : String(error)
  }
}
