// Runs on the client's host; deploy/hosts/run has made the hosts and removes them.
import { randomBytes } from 'node:crypto'
import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { addressOf, type Program, start } from './hosts.ts'
import { startPgbouncer } from './pgbouncer.ts'
import { type Hosts, scenarios } from './scenarios.ts'

const MODES = ['direct', 'session', 'transaction'] as const
const BIN = new URL('../../bin/offpeak.js', import.meta.url).pathname
const PART = new URL('serve-part.ts', import.meta.url).pathname
const folder = process.env.OFFPEAK_HOSTS_FOLDER ?? ''
const wanted = process.argv.slice(2)
const modes = wanted.length === 0 ? MODES : MODES.filter((mode) => wanted.includes(mode))
const env = {
  PATH: process.env.PATH,
  HOME: folder,
  OFFPEAK_MASTER_KEY: randomBytes(32).toString('base64'),
  AWS_ACCESS_KEY_ID: 'test',
  AWS_SECRET_ACCESS_KEY: 'test',
}

let violations = 0
for (const mode of modes) violations += await runMode(mode)
process.stdout.write(violations === 0 ? '\nevery promise was kept\n' : `\n${violations} violations\n`)
process.exit(violations === 0 ? 0 : 1)

async function runMode(mode: (typeof MODES)[number]): Promise<number> {
  process.stdout.write(`\n${mode === 'direct' ? 'without PgBouncer' : `PgBouncer, ${mode} pooling`}\n`)
  const part = (name: 'postgres' | 'bucket' | 'model'): Promise<Program> =>
    start(name, [process.execPath, PART, name, addressOf(name)], { ...env, OFFPEAK_HOSTS_FOLDER: folder })
  const parts = await Promise.all([part('postgres'), part('bucket'), part('model')])
  const [postgres, bucket, model] = parts.map(({ ready }) => ready) as [string, string, string]
  const pgbouncer = mode === 'direct' ? null : await startPgbouncer(folder, postgres, mode)
  const config = join(folder, `${mode}.yaml`)
  writeFileSync(
    config,
    `database: "${pgbouncer?.ready ?? postgres}"
blobs: "s3://test-bucket/hosts?endpoint=${encodeURIComponent(bucket)}"
listen: {host: 0.0.0.0}
models:
  - id: m
    price: {input_per_mtok: 0.10, output_per_mtok: 0.40}
    upstreams: [{type: openai, base_url: "${model}", timeout: 20s, concurrency_max: 32}]
rate_limit: {requests_per_minute: 100000}
log: {level: warn}
`,
  )
  const offpeak = (host: 'api' | 'worker-a' | 'worker-b', ...args: string[]): Promise<Program> => {
    const data = join(folder, `${mode}-${host}`)
    mkdirSync(data)
    return start(host, [process.execPath, BIN, ...args, '--config', config, '--data', data], env)
  }
  const api = await offpeak('api', 'api', '--port', '8080')
  const services = [api, await offpeak('worker-a', 'worker'), await offpeak('worker-b', 'worker')]
  const hosts: Hosts = {
    url: `http://${addressOf('api')}:8080`,
    keyFile: join(folder, `${mode}-api`, 'api-key'),
    database: pgbouncer === null ? 'postgres' : 'pgbouncer',
    model,
    services,
    doctor: (...args) =>
      start(
        'client',
        [process.execPath, BIN, 'doctor', ...args, '--config', config, '--data', join(folder, 'client')],
        env,
      ),
  }
  const found = await scenarios(hosts, process.env.OFFPEAK_HOSTS_ONLY ?? '')
  for (const { child } of [...services, ...parts, ...(pgbouncer ? [pgbouncer] : [])]) child.kill('SIGTERM')
  await Promise.all([...services, ...parts, ...(pgbouncer ? [pgbouncer] : [])].map(({ ended }) => ended))
  return found
}
