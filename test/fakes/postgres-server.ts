// A real PostgreSQL server for tests: made in a folder of its own, on a free port, gone afterwards. Where the
// programs are not installed there is none, and tests that need one say so and are skipped.
import { type ChildProcess, execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import {
  appendFileSync,
  chownSync,
  existsSync,
  globSync,
  mkdtempSync,
  readFileSync,
  writeFileSync,
} from 'node:fs'
import { rm } from 'node:fs/promises'
import { delimiter, join } from 'node:path'
import { createInterface } from 'node:readline'
import { Client } from 'pg'
import { freePort } from '../../src/engines/engine-access.ts'
import { postgresStore } from '../../src/store/postgres/store.ts'
import { childrenOf, killIfThere } from '../support/offpeak-process.ts'

const READY = 'database system is ready to accept connections'
/** The server refuses to run as root: then one of these runs it. */
const USERS = ['postgres', 'nobody']

export interface PostgresServer extends AsyncDisposable {
  /** The URL of a database of its own, with the schema of this version unless it is to be `empty`. */
  database(content?: 'empty'): Promise<string>
  /** Ends the server as a power cut would, and resolves when it has gone. */
  kill(): Promise<void>
  /** SIGKILL to the server and all its processes, which know nothing of it; resolves when they have gone. */
  crash(): Promise<void>
  /** Starts it again on the same port; resolves when it takes connections. */
  start(): Promise<void>
}

export interface PostgresServerOptions {
  /** Where its folder is made, which users other than this one can reach. */
  parent?: string
  /** Whether commits outlive a crash of the machine; off, tests are quicker. */
  fsync?: boolean
  /** Lines of its configuration. */
  settings?: readonly string[]
  /** What it speaks TLS with to those who ask for it, in PEM. */
  tls?: { cert: string; key: string }
  /** The address it listens on; every other host may then connect to it. */
  host?: string
}

/** The folder of PostgreSQL's programs, or null. */
export function postgresPrograms(): string | null {
  const installed = globSync('/usr/lib/postgresql/*/bin').sort((a, b) => major(b) - major(a))
  const folders = [...installed, ...(process.env.PATH ?? '').split(delimiter)]
  return (
    folders.find((folder) => ['initdb', 'postgres'].every((name) => existsSync(join(folder, name)))) ?? null
  )
}

/** For `skip` of a test: false where there is a PostgreSQL, else why there is none. */
export const withoutPostgres: string | false =
  postgresPrograms() === null &&
  'PostgreSQL is not installed (looked in /usr/lib/postgresql/*/bin and PATH; Debian: apt-get install postgresql)'

export async function postgresServer({
  parent = '/tmp',
  fsync = false,
  settings = [],
  tls,
  host = '127.0.0.1',
}: PostgresServerOptions = {}): Promise<PostgresServer> {
  const programs = postgresPrograms()
  if (programs === null) throw new Error(String(withoutPostgres))
  const folder = mkdtempSync(join(parent, 'offpeak-postgres-'))
  const user = serverUser()
  if (user) chownSync(folder, user.uid, user.gid)
  const data = join(folder, 'data')
  // Text is sorted by a language's rules, as on most servers, so that a query that needs bytes must say so.
  const locale = ['--locale=C', '--encoding=UTF8', '--locale-provider=icu', '--icu-locale=en-US']
  const setup = ['-D', data, '-U', 'offpeak', '-A', 'trust', '--no-sync', ...locale]
  execFileSync(join(programs, 'initdb'), setup, { ...user, cwd: folder, stdio: 'ignore' })
  if (host !== '127.0.0.1') appendFileSync(join(data, 'pg_hba.conf'), 'host all all 0.0.0.0/0 trust\n')
  const files = tls ? { 'server.crt': tls.cert, 'server.key': tls.key } : {}
  for (const [name, content] of Object.entries(files)) {
    writeFileSync(join(data, name), content, { mode: 0o600 })
    if (user) chownSync(join(data, name), user.uid, user.gid)
  }
  const port = await freePort()
  const flags = [`fsync=${fsync ? 'on' : 'off'}`, 'max_connections=60', 'shared_buffers=32MB', ...settings]
  if (tls) flags.push('ssl=on')
  const args = ['-D', data, '-h', host, '-p', String(port), '-k', folder]
  for (const flag of flags) args.push('-c', flag)
  let server: ChildProcess | null = null
  const killNow = (): void => {
    server?.kill('SIGQUIT')
  }
  process.on('exit', killNow)
  const stop = async (signal: NodeJS.Signals): Promise<void> => {
    const running = server
    server = null
    if (running === null || running.exitCode !== null) return
    running.kill(signal)
    await once(running, 'exit')
  }
  const start = async (): Promise<void> => {
    const child = spawn(join(programs, 'postgres'), args, {
      ...user,
      cwd: folder,
      stdio: ['ignore', 'ignore', 'pipe'],
    })
    server = child
    await readiness(child)
  }
  await start()
  const urlOf = (name: string): string => `postgres://offpeak@${host}:${port}/${name}`
  let made = 0
  const copyOf = async (template: string): Promise<string> => {
    const name = `test_${++made}`
    const client = new Client({ connectionString: urlOf('postgres') })
    await client.connect()
    await client.query(`CREATE DATABASE ${name} TEMPLATE ${template}`)
    await client.end()
    return name
  }
  const makeMigrated = async (): Promise<string> => {
    const name = await copyOf('template0')
    const store = postgresStore({ url: urlOf(name) })
    await store.migrate()
    await store.close()
    return name
  }
  let migrated: Promise<string> | null = null
  return {
    async database(content) {
      if (content === 'empty') return urlOf(await copyOf('template0'))
      migrated ??= makeMigrated()
      return urlOf(await copyOf(await migrated))
    },
    // SIGQUIT: the postmaster ends its children without a checkpoint; what comes back is crash recovery.
    kill: () => stop('SIGQUIT'),
    async crash() {
      const backends = server === null ? [] : childrenOf(server)
      const gone = stop('SIGKILL')
      for (const backend of backends) killIfThere(backend)
      await gone
    },
    start,
    async [Symbol.asyncDispose]() {
      process.off('exit', killNow)
      await stop('SIGQUIT')
      await rm(folder, { recursive: true, force: true })
    },
  }
}

async function readiness(server: ChildProcess): Promise<void> {
  const said: string[] = []
  const lines = createInterface({ input: server.stderr! })
  await new Promise<void>((resolve, reject) => {
    lines.on('line', (line) => {
      said.push(line)
      if (line.includes(READY)) resolve()
    })
    server.once('exit', () => reject(new Error(`PostgreSQL did not start:\n${said.join('\n')}`)))
  })
  // Whatever it says from now on is read and dropped, so that it never waits for a reader.
  said.length = 0
  lines.removeAllListeners('line')
  lines.on('line', () => {})
}

function serverUser(): { uid: number; gid: number } | null {
  if (process.getuid?.() !== 0) return null
  const rows = readFileSync('/etc/passwd', 'utf8').split('\n')
  for (const name of USERS) {
    const [, , uid, gid] = rows.find((row) => row.startsWith(`${name}:`))?.split(':') ?? []
    if (uid && gid) return { uid: Number(uid), gid: Number(gid) }
  }
  return null
}

function major(folder: string): number {
  return Number(/postgresql\/(\d+)/.exec(folder)?.[1] ?? 0)
}
