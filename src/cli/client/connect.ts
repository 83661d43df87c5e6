// Connects a command to a service: the one that OFFPEAK_BASE_URL and OFFPEAK_API_KEY name, otherwise the one on this
// machine, or, for `run` and where none listens, an embedded service that is started for the command.
import { existsSync, readFileSync } from 'node:fs'
import { connect as connectTo } from 'node:net'
import { apiKeyPath, type Config } from '../../config/config.ts'
import { isTerminal } from '../../domain/batch.ts'
import { keyProblem } from '../../domain/credentials.ts'
import { sentence } from '../../domain/text.ts'
import { BatchObject } from '../../wire/batch.ts'
import type { RunEngine } from '../engine-flags.ts'
import type { ConfigFlags, Launch, ServeOptions, Shell, UpstreamFlags } from '../shell.ts'
import { Failure, hasCode } from '../terminal/failure.ts'
import { type ProgressView, progressView } from '../terminal/progress-view.ts'
import { humanDuration, writeLine } from '../terminal/terminal.ts'
import { ApiClient, pathOf } from './client.ts'
import { LOCAL_PACE, type Pace, poll, REMOTE_PACE, type Watch } from './watch-batch.ts'

export interface Connection {
  client: ApiClient
  watch: Watch
  /** The service in the state of a run: a base URL, or the data folder of an embedded service. */
  target: string
  embedded: boolean
  /** The options by which another command finds the data folder of an embedded service. */
  options: string
  /**
   * Makes an embedded service send the lines of this batch, or validate this file of an earlier command; it ignores all
   * others.
   */
  answer(id: string): void
  /** Rejects when an embedded service cannot go on: its API may still answer, and its batches would wait for ever. */
  failed: Promise<void>
  close(): Promise<void>
}

/**
 * Connects to the remote service, or to the configured address of this machine; where nothing listens there, to an
 * embedded service.
 */
async function connect(
  shell: Shell,
  flags: ConfigFlags,
  signal: AbortSignal,
  embeds: boolean,
): Promise<Connection> {
  const remote = remoteConnection(shell, signal)
  if (remote !== null) return remote
  const config = await shell.launch.loadConfig(flags)
  const apiKey = readApiKey(config)
  const { host, port } = config.listen
  if (embeds && !(await listens(config.listen))) {
    const tell = (text: string): void => writeLine(shell.terminal.stderr, `offpeak: ${text}`)
    const service = await embed(shell.launch, config, { alone: true, tell, signal })
    return connectEmbedded(shell, flags, config, service, signal)
  }
  const baseUrl = `http://${host.includes(':') ? `[${host}]` : host}:${port}`
  return tellingVersion(shell, connection(shell, baseUrl, apiKey, LOCAL_PACE, signal))
}

/** Warns once if the service has another version. */
function tellingVersion({ version, terminal }: Shell, found: Connection): Connection {
  const told = found.client.serviceVersion().then((theirs) => {
    if (theirs !== null && theirs !== version)
      writeLine(
        terminal.stderr,
        `offpeak: ${found.target} has version ${theirs}, and this command line ${version}; versions that are more than one minor version apart may not understand each other (docs/upgrading.md).`,
      )
  })
  return {
    ...found,
    async close() {
      await told
      await found.close()
    },
  }
}

function listens({ host, port }: Config['listen']): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connectTo({ host, port }, () => resolve(true))
    socket.on('error', () => resolve(false)).on('connect', () => socket.destroy())
  })
}

/** Connects to the remote service, or starts an embedded one that `close` stops. */
export async function connectOrEmbed(
  shell: Shell,
  flags: ConfigFlags & UpstreamFlags,
  { view, signal }: Pick<Watch, 'view' | 'signal'>,
  engine: RunEngine | null = null,
): Promise<Connection> {
  const remote = remoteConnection(shell, signal, view)
  const option = flags.upstream !== undefined ? '--upstream' : engine !== null ? '--engine' : null
  if (remote !== null && option !== null)
    throw new Failure(
      `${option} is for the embedded service, but OFFPEAK_BASE_URL names a remote one; leave out one of the two`,
    )
  if (remote !== null) return remote
  const given = await shell.launch.loadConfig(flags)
  const now = shell.clock.now()
  const config = engine?.apply(given, now) ?? given
  const { upstream, upstreamKeyEnv } = flags
  const service = await embed(shell.launch, config, { upstream, upstreamKeyEnv })
  return connectEmbedded(shell, flags, config, service, signal, view)
}

/** Connects; to an embedded service where the data folder is new, or `flags` name a model server. */
export async function connectOrStart(
  shell: Shell,
  flags: ConfigFlags & UpstreamFlags,
  watch: Pick<Watch, 'view' | 'signal'>,
): Promise<Connection> {
  const isUsed = async (): Promise<boolean> => existsSync(apiKeyPath(await shell.launch.loadConfig(flags)))
  const isRemote = Object.values(shell.access).some((value) => value !== undefined)
  if (flags.upstream === undefined && (isRemote || (await isUsed())))
    return await connect(shell, flags, watch.signal, true)
  return await connectOrEmbed(shell, flags, watch)
}

function connectEmbedded(
  shell: Shell,
  flags: ConfigFlags,
  config: Config,
  service: Embedded,
  signal: AbortSignal,
  view?: ProgressView,
): Connection {
  const found = connection(shell, service.url, readApiKey(config), LOCAL_PACE, signal, view)
  return {
    ...found,
    target: config.data_dir,
    embedded: true,
    options: (['config', 'data'] as const)
      .map((name) => (flags[name] === undefined ? '' : ` --${name} ${flags[name]}`))
      .join(''),
    answer: service.answer,
    failed: service.failed,
    async close() {
      await found.close()
      await service.stop()
    },
  }
}

interface Embedded extends Pick<Connection, 'answer' | 'failed'> {
  url: string
  stop(): Promise<void>
}

/** Starts an embedded service on a free port of the loopback address, which logs only warnings and errors. */
export async function embed(
  launch: Pick<Launch, 'serve'>,
  config: Config,
  { alone = false, ...options }: Omit<ServeOptions, 'role' | 'embedded'> & { alone?: boolean },
): Promise<Embedded> {
  const { level } = config.log
  const quiet: Config = {
    ...config,
    listen: { ...config.listen, host: '127.0.0.1', port: 0 },
    // The command itself reports the ordinary events.
    log: { level: level === 'info' ? 'warn' : level },
  }
  const running = await launch.serve(quiet, { ...options, role: 'all', embedded: { alone } })
  if (running.url === null) throw new Error('the embedded service does not listen')
  const { url, stopped: failed } = running
  return { url, failed, answer: (id) => running.answer?.(id), stop: () => running.stop() }
}

export function readApiKey(config: Config): string {
  const path = apiKeyPath(config)
  try {
    const key = readFileSync(path, 'utf8').trim()
    const why = keyProblem(key)
    if (why !== null) throw new Failure(`the file ${path} ${why}`)
    return key
  } catch (error) {
    if (!hasCode(error, 'ENOENT')) throw error
    throw new Failure(
      `there is no API key in ${path}; start the service once with "offpeak serve", or set OFFPEAK_BASE_URL and OFFPEAK_API_KEY`,
    )
  }
}

function connection(
  shell: Shell,
  baseUrl: string,
  apiKey: string,
  pace: Pace,
  signal: AbortSignal,
  view = progressView(shell.terminal.stderr, shell.clock),
): Connection {
  const { clock, terminal, version } = shell
  const watch = { view, pace, clock, signal }
  // Concurrent calls are retried at the same time, and warn once.
  let quietUntil = 0
  const client = new ApiClient({
    baseUrl,
    apiKey,
    clock,
    signal,
    version,
    onRetry(reason, delayMs, triedMs) {
      if (clock.steady() < quietUntil) return
      quietUntil = clock.steady() + delayMs
      writeLine(
        terminal.stderr,
        `${sentence(reason)} Retrying in ${Math.ceil(delayMs / 1000)}s${triedMs < 1000 ? '' : `, after ${humanDuration(triedMs)} of tries`}.`,
      )
    },
  })
  return {
    ...{ client, watch, target: client.baseUrl, embedded: false, options: '' },
    answer() {},
    failed: new Promise(() => {}),
    close: () => client.close(),
  }
}

/** Connects to the service of the environment's variables; null where they name none. */
function remoteConnection(shell: Shell, signal: AbortSignal, view?: ProgressView): Connection | null {
  const { baseUrl, apiKey } = shell.access
  if (baseUrl === undefined && apiKey === undefined) return null
  if (baseUrl === undefined || apiKey === undefined) {
    const names = ['OFFPEAK_BASE_URL', 'OFFPEAK_API_KEY']
    const [set, unset] = baseUrl === undefined ? names.reverse() : names
    throw new Failure(
      `${set} is set but ${unset} is not; set both to use a remote service, or neither to use the one on this machine`,
    )
  }
  if (!/^https?:\/\//.test(baseUrl) || !URL.canParse(baseUrl)) {
    throw new Failure(`OFFPEAK_BASE_URL is ${baseUrl}; expected an address such as http://127.0.0.1:8080`)
  }
  const why = keyProblem(apiKey)
  if (why !== null) throw new Failure(`the variable OFFPEAK_API_KEY ${why}`)
  return tellingVersion(shell, connection(shell, baseUrl, apiKey, REMOTE_PACE, signal, view))
}

/** Opens a connection for a command and closes it after. Without `embeds`, no service is started. */
export async function withApi(
  shell: Shell,
  flags: ConfigFlags,
  act: (connection: Connection) => Promise<void>,
  embeds = true,
): Promise<void> {
  const connection = await connect(shell, flags, shell.interruption(), embeds)
  try {
    await Promise.race([act(connection), connection.failed])
  } finally {
    connection.watch.view.stop()
    await connection.close()
  }
}

/** Cancels a batch and returns it; waits for the cancellation where the service ends with the command. */
export async function cancelBatch(
  { client, embedded, answer, watch }: Connection,
  id: string,
): Promise<BatchObject> {
  const path = pathOf('batches', id)
  const batch = await client.post(BatchObject, `${path}/cancel`)
  if (!embedded) return batch
  answer(id)
  const read = (): Promise<BatchObject> => client.get(BatchObject, path)
  return await poll(read, ({ status }) => isTerminal(status), watch)
}
