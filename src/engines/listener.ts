// Tells whose process listens on a port of this machine. Every user of the machine may take the port that an engine was
// given, while it loads its model or once it has crashed; such a process must get neither keys nor lines.
//
// Linux lists listening sockets with their inodes, and the descriptors of processes name these inodes. Elsewhere lsof
// lists the processes that listen. Root's sockets are trusted: root reads the memory of this process anyway, and
// container runtimes listen as root.
import { execFile } from 'node:child_process'
import { existsSync } from 'node:fs'
import { readdir, readFile, readlink } from 'node:fs/promises'
import type { EngineProcess } from './engine-process.ts'

export type Owner = Pick<EngineProcess, 'pid' | 'tag'>

/** Who listens on the port; null: nobody. `id` names the sockets: it stays the same while they do. */
export type FindListener = (port: number, owner: Owner) => Promise<Listening | null>

export interface Listening {
  id: string
  /** Whether it is the owner, or a process that it has started. */
  isOwned(): Promise<boolean>
}

export const findListener: FindListener = (port, owner) =>
  existsSync('/proc/net/tcp') ? findInProc(port, owner) : findByLsof(port, owner)

interface ListeningSocket {
  uid: number
  inode: string
}

const TABLES = ['/proc/net/tcp', '/proc/net/tcp6']
const LISTENS = '0A'

export const findInProc: FindListener = async (port, owner) => {
  const tables = await Promise.all(TABLES.map((path) => readFile(path, 'utf8').catch(() => '')))
  const sockets = tables.flatMap((table) => listeningOn(port, table))
  if (sockets.length === 0) return null
  return {
    id: sockets.map(({ inode }) => inode).join(),
    async isOwned() {
      const others = sockets.filter(({ uid }) => uid !== 0 || process.getuid?.() === 0)
      const own = others.length === 0 ? new Set() : await inodesOf(owner)
      return others.every(({ inode }) => own.has(inode))
    },
  }
}

/** Whatever the address: of two sockets on one port, either could get a connection. */
function listeningOn(port: number, table: string): ListeningSocket[] {
  const suffix = `:${port.toString(16).toUpperCase().padStart(4, '0')}`
  return table.split('\n').flatMap((row) => {
    const [, local = '', , state, , , , uid, , inode = ''] = row.trim().split(/\s+/)
    return state === LISTENS && local.endsWith(suffix) ? [{ uid: Number(uid), inode }] : []
  })
}

async function inodesOf(owner: Owner): Promise<Set<string>> {
  const pids = (await readdir('/proc')).filter((name) => /^\d+$/.test(name))
  const found = await Promise.all(
    pids.map(async (pid) => ((await belongsTo(owner, pid)) ? await socketsOf(pid) : [])),
  )
  return new Set(found.flat())
}

/** Of the engine's session, or marked as the guard marks what it starts, which may leave the session. */
async function belongsTo({ pid: leader, tag }: Owner, pid: string): Promise<boolean> {
  const [stat, environ] = await Promise.all(
    ['stat', 'environ'].map((file) => readFile(`/proc/${pid}/${file}`, 'utf8').catch(() => '')),
  )
  // The name of the program, in brackets, may hold anything.
  const [, , , session] = (stat ?? '').slice((stat ?? '').lastIndexOf(')') + 2).split(' ')
  return Number(session) === leader || (environ ?? '').split('\0').includes(`OFFPEAK_ENGINE=${tag}`)
}

async function socketsOf(pid: string): Promise<string[]> {
  const folder = `/proc/${pid}/fd`
  const names = await readdir(folder).catch(() => [])
  const links = await Promise.all(names.map((name) => readlink(`${folder}/${name}`).catch(() => '')))
  return links.flatMap((link) => /^socket:\[(\d+)\]$/.exec(link)?.[1] ?? [])
}

/** It lists processes of this user only, unless that is root: those of others are as if nobody listened. */
export const findByLsof: FindListener = async (port, { pid: leader }) => {
  const fields = await lsof(['-nP', `-iTCP:${port}`, '-sTCP:LISTEN', '-Fpg'])
  const pids = fields.filter((field) => field.startsWith('p'))
  if (pids.length === 0) return null
  const groups = fields.filter((field) => field.startsWith('g'))
  return { id: pids.join(), isOwned: async () => groups.every((group) => group === `g${leader}`) }
}

function lsof(args: readonly string[]): Promise<string[]> {
  return new Promise((resolve, reject) => {
    execFile('lsof', args, (error, stdout) => {
      if (error?.code === 'ENOENT')
        reject(new Error('neither /proc nor lsof can tell who listens on its port; give it {socket} instead'))
      // It exits with 1 where nobody listens.
      else resolve(stdout.split('\n'))
    })
  })
}
