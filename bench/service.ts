// Starts the service that a benchmark measures, as its users start it, and makes a client for it.
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { BatchClient } from './batch-client.ts'
import { type Started, start } from './processes.ts'

const OFFPEAK = fileURLToPath(new URL('../bin/offpeak.js', import.meta.url))

export interface Service extends Started {
  /** The data folder, and the options by which other commands find the same stores. */
  data: string
  flags: readonly string[]
  url: string
  key: string
  client: BatchClient
}

/**
 * `models`: that section of the configuration, as YAML. Data and configuration lie in `folder`. `program`: another
 * version of `bin/offpeak.js`.
 */
export async function startService(
  folder: string,
  models: string,
  flags: readonly string[] = [],
  { env = {}, program = OFFPEAK }: { env?: NodeJS.ProcessEnv; program?: string } = {},
): Promise<Service> {
  const config = join(folder, 'offpeak.yaml')
  const data = join(folder, 'data')
  writeFileSync(config, `rate_limit: {requests_per_minute: 0}\nlog: {level: warn}\n${models}`)
  const stores = ['--data', data, '--config', config]
  const started = await start(program, ['serve', '--port', '0', ...stores, ...flags], env)
  const url = started.first.replace('offpeak listening on ', '')
  const key = readFileSync(join(data, 'api-key'), 'utf8').trim()
  return { ...started, data, flags: stores, url, key, client: new BatchClient(url, key) }
}
