// The third step: what the settings only name is looked up in the environment. No secret is ever part of a
// message.
import type { BlobsConfig, Config, ModelConfig } from './config.ts'
import type { ModelSettings } from './read-models.ts'
import type { S3Settings } from './read-stores.ts'
import type { Settings } from './settings.ts'

/** The settings made complete; `problems` gains a sentence for each variable that is missing. */
export function withSecrets(settings: Settings, env: NodeJS.ProcessEnv, problems: string[]): Config {
  const models = settings.models.map((model, i) => resolveModel(model, i, env, problems))
  const blobs: BlobsConfig =
    settings.blobs.kind === 's3' ? bucketAccess(settings.blobs, env, problems) : settings.blobs
  return { ...settings, models, blobs, master_key: present(env.OFFPEAK_MASTER_KEY) }
}

function resolveModel(
  { model, upstreams }: ModelSettings,
  index: number,
  env: NodeJS.ProcessEnv,
  problems: string[],
): ModelConfig {
  return {
    model,
    upstreams: upstreams.map((upstream, i) => {
      if (upstream.type === 'sim') return upstream
      const { api_key_env, ...rest } = upstream
      const api_key = api_key_env === null ? undefined : present(env[api_key_env])
      if (api_key_env !== null && api_key === undefined) {
        problems.push(
          `models[${index}].upstreams[${i}].api_key_env: the variable ${api_key_env} is not set; export it, or remove the key if the server asks for none`,
        )
      }
      return { ...rest, api_key: api_key ?? null }
    }),
  }
}

function bucketAccess(settings: S3Settings, env: NodeJS.ProcessEnv, problems: string[]): BlobsConfig {
  const lookUp = (name: string): string => {
    const value = present(env[name])
    if (value === undefined) problems.push(`blobs: the bucket ${settings.bucket} needs the variable ${name}`)
    return value ?? ''
  }
  return {
    ...settings,
    region: settings.region ?? present(env.AWS_REGION) ?? present(env.AWS_DEFAULT_REGION) ?? 'us-east-1',
    access_key_id: lookUp('AWS_ACCESS_KEY_ID'),
    secret_access_key: lookUp('AWS_SECRET_ACCESS_KEY'),
    session_token: present(env.AWS_SESSION_TOKEN) ?? null,
  }
}

/** Shells and compose files often set a variable to nothing: that is not setting it. */
function present(value: string | undefined): string | undefined {
  const trimmed = value?.trim()
  return trimmed === '' ? undefined : trimmed
}
