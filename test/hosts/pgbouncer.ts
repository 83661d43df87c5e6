// PgBouncer on a host of its own, configured as docs/scaling.md says.
import { execFileSync } from 'node:child_process'
import { chmodSync, writeFileSync } from 'node:fs'
import { connect } from 'node:net'
import { join } from 'node:path'
import { setTimeout as wait } from 'node:timers/promises'
import { addressOf, type Program, start } from './hosts.ts'

const PORT = 6432
const READY_TRIES = 100

/** `postgres`: the URL of the database behind it. `ready` of what is returned is the URL for its clients. */
export async function startPgbouncer(folder: string, postgres: string, mode: string): Promise<Program> {
  const database = new URL(postgres)
  const name = database.pathname.slice(1)
  const config = join(folder, `pgbouncer-${mode}.ini`)
  const users = join(folder, 'users.txt')
  const host = addressOf('pgbouncer')
  writeFileSync(users, '"offpeak" ""\n')
  writeFileSync(
    config,
    `[databases]
${name} = host=${database.hostname} port=${database.port} user=offpeak
[pgbouncer]
listen_addr = ${host}
listen_port = ${PORT}
unix_socket_dir =
auth_type = any
auth_file = ${users}
pool_mode = ${mode}
default_pool_size = ${mode === 'session' ? 40 : 10}
ignore_startup_parameters = statement_timeout,lock_timeout,idle_in_transaction_session_timeout
`,
  )
  for (const file of [config, users]) chmodSync(file, 0o644)
  // It refuses to run as root.
  const uid = execFileSync('id', ['-u', 'postgres'], { encoding: 'utf8' }).trim()
  const asUser = ['setpriv', '--reuid', uid, '--clear-groups', '--no-new-privs']
  const url = `postgres://offpeak@${host}:${PORT}/${name}`
  const shell = ['sh', '-c', 'echo started; exec "$@"', 'sh']
  const program = await start('pgbouncer', [...shell, ...asUser, 'pgbouncer', config], {
    PATH: process.env.PATH,
  })
  for (let tries = 0; !(await accepts(host)); tries++) {
    if (tries > READY_TRIES) throw new Error(`PgBouncer does not start:\n${program.log.join('\n')}`)
    await wait(100)
  }
  return { ...program, ready: url }
}

async function accepts(host: string): Promise<boolean> {
  return await new Promise((resolve) => {
    const socket = connect(PORT, host, () => resolve(true)).on('error', () => resolve(false))
    socket.once('connect', () => socket.destroy())
  })
}
