// A worker reaches an engine by a Unix socket in a folder that is closed to other users, or by a loopback port whose
// listener is verified to be the engine. Each connection to a port is verified before anything is sent on it, but after
// it is established, so that the verified listener is the one that accepted it.
import { execFile } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { existsSync } from 'node:fs'
import { mkdtemp, readdir, readFile, readlink } from 'node:fs/promises'
import { connect, createServer, type NetConnectOpts } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { EngineConfig } from '../config/config.ts'
import { http } from '../domain/http-module.ts'
import type { EngineOrder, EngineProcess } from './engine-process.ts'

const READY_MS_MAX = 5_000

export async function newPlace(spec: EngineConfig): Promise<EnginePlace> {
  const hasSocket = usesPlaceholder(spec, 'socket')
  const needsFolder = hasSocket || usesPlaceholder(spec, 'files')
  const folder = needsFolder ? await mkdtemp(join(shortFolder(), 'offpeak-engine-')) : null
  return { port: hasSocket ? null : await freePort(), folder }
}

/** A folder for temporary files whose path is short, since the path of a socket has 103 bytes at most. */
function shortFolder(): string {
  const folder = tmpdir()
  return Buffer.byteLength(folder) > 64 ? '/tmp' : folder
}

/** The state of an engine. `ready`: it accepts requests; `taken`: another process listens on its port. */
export type EngineState = 'starting' | 'ready' | 'taken'

export interface EngineAccess {
  readonly base_url: string
  /** The path of the engine's socket; null: it listens on a port. */
  readonly socket: string | null
  /** Calls `path` of the engine with the key. Rejects where the system cannot tell who listens. */
  state(path: string, api_key: string): Promise<EngineState>
  /** Whether a connection just established to the port leads to the engine. */
  isOwn(): Promise<boolean>
}

export function accessTo(place: EnginePlace, owner: Owner, find: FindListener = findListener): EngineAccess {
  const { port } = place
  const socket = socketOf(place)
  let verified: string | null = null
  const whose = async (): Promise<'nobody' | 'own' | 'other'> => {
    if (port === null) return 'own'
    const listening = await find(port, owner)
    if (listening === null) return 'nobody'
    if (listening.id !== verified) verified = (await listening.isOwned()) ? listening.id : null
    return verified === null ? 'other' : 'own'
  }
  const isOwn = async (): Promise<boolean> => (await whose()) === 'own'
  const to: NetConnectOpts = socket === null ? { host: '127.0.0.1', port: port ?? 0 } : { path: socket }
  return {
    base_url: socket === null ? `http://127.0.0.1:${port}/v1` : 'http://localhost/v1',
    socket,
    isOwn,
    async state(path, api_key) {
      const found = await whose()
      if (found !== 'own') return found === 'other' ? 'taken' : 'starting'
      return (await answersOk(to, isOwn, path, api_key)) ? 'ready' : 'starting'
    },
  }
}

/** Finds a port of the loopback address on which no process listens. */
export async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const address = server.address()
  server.close()
  await once(server, 'close')
  if (address === null || typeof address === 'string') throw new Error('the system assigned no port')
  return address.port
}

/** Whether the engine answers 200 at its ready path. Never rejects for the engine's behaviour. */
async function answersOk(
  to: NetConnectOpts,
  isOwn: () => Promise<boolean>,
  path: string,
  api_key: string,
): Promise<boolean> {
  const signal = AbortSignal.timeout(READY_MS_MAX)
  const socket = connect(to)
  socket.on('error', () => {})
  try {
    await once(socket, 'connect', { signal })
    if (!(await isOwn())) return false
    // A kept connection would delay the server's stop.
    const headers = { authorization: `Bearer ${api_key}`, host: 'localhost', connection: 'close' }
    const request = http.request({ path, headers, signal, createConnection: () => socket }).end()
    const [response] = await once(request, 'response', { signal })
    // Later errors come from the connection that is closed here.
    for (const emitter of [request, response]) emitter.on('error', () => {})
    return response.statusCode === 200
  } catch {
    return false
  } finally {
    socket.destroy()
  }
}

// Finds the owner of the process that listens on a port of this machine. Every user of the machine may take the port
// that an engine was given, while it loads its model or once it has crashed; such a process must get neither keys nor
// lines.
//
// Linux lists listening sockets with their inodes, and the descriptors of processes name these inodes. Elsewhere lsof
// lists listeners. Root's sockets are trusted: root reads the memory of this process anyway, and container runtimes
// listen as root.

export type Owner = Pick<EngineProcess, 'pid' | 'tag'>

/** Finds the processes that listen on a port; null: none. `id` identifies their sockets. */
export type FindListener = (port: number, owner: Owner) => Promise<Listening | null>

interface Listening {
  id: string
  /** Whether the listener is the owner, or a process that it has started. */
  isOwned(): Promise<boolean>
}

const findListener: FindListener = (port, owner) =>
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

/** The listening sockets on a port, at any address: each of two sockets could get a connection. */
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

/** Whether a process is in the engine's session, or has its tag, which children that left the session keep. */
async function belongsTo({ pid: leader, tag }: Owner, pid: string): Promise<boolean> {
  const [stat, environ] = await Promise.all(
    ['stat', 'environ'].map((file) => readFile(`/proc/${pid}/${file}`, 'utf8').catch(() => '')),
  )
  // The name of the program, in brackets, may contain anything.
  const [, , , session] = (stat ?? '').slice((stat ?? '').lastIndexOf(')') + 2).split(' ')
  return Number(session) === leader || (environ ?? '').split('\0').includes(`OFFPEAK_ENGINE=${tag}`)
}

async function socketsOf(pid: string): Promise<string[]> {
  const folder = `/proc/${pid}/fd`
  const names = await readdir(folder).catch(() => [])
  const links = await Promise.all(names.map((name) => readlink(`${folder}/${name}`).catch(() => '')))
  return links.flatMap((link) => /^socket:\[(\d+)\]$/.exec(link)?.[1] ?? [])
}

/** Finds listeners by lsof. Only root sees the processes of other users; a port of another user looks free. */
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
      // lsof exits with 1 where no process listens.
      else resolve(stdout.split('\n'))
    })
  })
}

// Fills in the placeholders of an engine's command, and makes its environment.

/** The share of this machine for all engines, and the time for which one runs before another may replace it. */
export interface MachineSpec {
  /** The names of the GPUs in CUDA_VISIBLE_DEVICES. */
  gpus: readonly string[]
  memory_bytes: number
  run_ms_min: number
}

const PLACEHOLDER = /\{(port|socket|files|api_key|model)\}/g

/** The port or the folder in which an engine listens. */
export interface EnginePlace {
  /** The port on 127.0.0.1; null: the engine listens on the socket. */
  port: number | null
  /** The engine's own folder, mode 0700; null where it needs none. */
  folder: string | null
}

/** The name of the socket, by whose ending llama.cpp takes an address for a socket. */
const SOCKET_NAME = 'engine.sock'
const FILES_NAME = 'files'

/** The path of an engine's socket; null: it listens on a port. */
function socketOf({ port, folder }: EnginePlace): string | null {
  return port === null && folder !== null ? join(folder, SOCKET_NAME) : null
}

type Filling = Record<'port' | 'socket' | 'files' | 'api_key' | 'model', string>

function usesPlaceholder(
  { command, env, files }: Pick<EngineConfig, 'command' | 'env' | 'files'>,
  name: keyof Filling,
): boolean {
  const words = [...command, ...Object.values(env), ...Object.values(files)]
  return words.some((word) => word.includes(`{${name}}`))
}

export function newApiKey(): string {
  return randomBytes(24).toString('base64url')
}

/** Fills in placeholders; other braces are kept, since arguments may be JSON. */
export function filled(text: string, values: Partial<Filling>): string {
  return text.replaceAll(PLACEHOLDER, (found, name: keyof Filling) => values[name] ?? found)
}

/** Makes the command and the environment of an engine. `gpus`: the GPUs for it; empty: no variable is set. */
export function orderOf(
  { command, env, pass_env, files }: EngineConfig,
  place: EnginePlace,
  { api_key, model }: { api_key: string; model: string },
  gpus: readonly string[] = [],
): EngineOrder {
  const { port, folder } = place
  const socket = socketOf(place)
  const filesFolder = join(folder ?? '', FILES_NAME)
  const values = {
    ...{ api_key, model },
    ...(port === null ? {} : { port: String(port) }),
    ...(socket === null ? {} : { socket }),
    ...(folder === null ? {} : { files: filesFolder }),
  }
  const fill = (texts: Readonly<Record<string, string>>): Record<string, string> =>
    Object.fromEntries(Object.entries(texts).map(([name, text]) => [name, filled(text, values)]))
  const devices: Record<string, string> = gpus.length === 0 ? {} : { CUDA_VISIBLE_DEVICES: gpus.join(',') }
  return {
    command: command.map((word) => filled(word, values)),
    env: { ...environmentOf(process.env, pass_env), ...devices, ...fill(env) },
    folder,
    files: Object.fromEntries(
      Object.entries(fill(files)).map(([name, text]) => [join(filesFolder, name), text]),
    ),
  }
}

/** Variables that engines and their runtimes read; none of them is a credential. */
const PASSED = new Set([
  ...['PATH', 'HOME', 'USER', 'LOGNAME', 'SHELL', 'TMPDIR', 'TZ', 'LANG', 'LANGUAGE', 'TERM'],
  ...['LD_LIBRARY_PATH', 'LIBRARY_PATH', 'VIRTUAL_ENV', 'CONDA_PREFIX', 'TOKENIZERS_PARALLELISM', 'MAX_JOBS'],
  ...['SSL_CERT_FILE', 'SSL_CERT_DIR', 'REQUESTS_CA_BUNDLE', 'CURL_CA_BUNDLE', 'CC', 'CXX'],
])
const PASSED_BEGINNINGS = [
  ...['LC_', 'XDG_', 'PYTHON', 'OMP_', 'KMP_', 'MKL_', 'OPENBLAS_', 'TORCH', 'PYTORCH_', 'TRITON_', 'NUMBA_'],
  ...['CUDA_', 'NVIDIA_', 'NCCL_', 'HIP_', 'ROCR_', 'ROCM_', 'HSA_', 'GPU_', 'ZE_', 'ONEAPI_', 'SYCL_'],
  ...[
    'GGML_',
    'LLAMA_',
    'VLLM_',
    'SGL_',
    'SGLANG_',
    'OLLAMA_',
    'MLX_',
    'HF_',
    'HUGGINGFACE_',
    'TRANSFORMERS_',
  ],
]
const PROXIES = /^(https?|all|no)_proxy$/i
const CREDENTIAL = /KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH/i

/** Selects the variables for an engine. `names`: those that are always passed. */
function environmentOf(env: NodeJS.ProcessEnv, names: readonly string[]): Record<string, string> {
  const isPassed = (name: string, value: string): boolean => {
    if (names.includes(name) || PASSED.has(name)) return true
    // A proxy's address may have a password.
    if (PROXIES.test(name)) return !value.includes('@')
    return PASSED_BEGINNINGS.some((beginning) => name.startsWith(beginning)) && !CREDENTIAL.test(name)
  }
  const entries = Object.entries(env).flatMap(([name, value]) =>
    value !== undefined && isPassed(name, value) ? [[name, value] as const] : [],
  )
  return Object.fromEntries(entries)
}
