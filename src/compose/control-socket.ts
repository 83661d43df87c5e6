// Opens a socket in the data folder on which a running service takes `offpeak reload`. Only its user can reach it.
import { chmodSync, readdirSync, rmSync } from 'node:fs'
import { connect, createServer, type Server } from 'node:net'
import { join } from 'node:path'
import { makeFolder } from '../blobs/folders.ts'
import { hasCode } from '../cli/terminal/failure.ts'
import type { Config } from '../config/config.ts'
import { systemClock } from '../domain/clock.ts'
import type { Log } from '../domain/log.ts'
import type { Model } from '../domain/model.ts'
import { modelsById } from './upstreams.ts'

/** The answer to a reload: the error that prevented it, or the changed sections that need a restart. */
export interface ReloadAnswer {
  error: string | null
  needsRestart: string[]
}

/** The kernel's limit of a socket's path in bytes. */
const PATH_BYTES_MAX = 100
const ANSWER_MS_MAX = 15_000

const folderOf = (data_dir: string): string => join(data_dir, 'control')

/** Listens for `offpeak reload`; null where the path of the data folder is too long. SIGHUP works nevertheless. */
export function listenForReload(
  data_dir: string,
  reload: () => Promise<ReloadAnswer>,
  log: Log,
): Server | null {
  const path = join(folderOf(data_dir), `${process.pid}.sock`)
  if (Buffer.byteLength(path) > PATH_BYTES_MAX || process.platform === 'win32') return null
  makeFolder(folderOf(data_dir))
  chmodSync(folderOf(data_dir), 0o700)
  rmSync(path, { force: true })
  const server = createServer((socket) => {
    socket.on('error', () => {})
    socket.once('data', () => void reload().then((answer) => socket.end(JSON.stringify(answer))))
  })
  server.on('error', (err) =>
    log.warn({ err }, 'the control socket could not be opened; SIGHUP reloads all the same'),
  )
  server.listen(path)
  return server.unref()
}

/** Asks every service with this data folder to reload; the answers by process ID. */
export async function askToReload(data_dir: string): Promise<Map<string, ReloadAnswer>> {
  const answers = new Map<string, ReloadAnswer>()
  for (const name of namesIn(folderOf(data_dir))) {
    const path = join(folderOf(data_dir), name)
    const answer = await ask(path)
    if (answer === null) rmSync(path, { force: true })
    else answers.set(name.replace(/\.sock$/, ''), answer)
  }
  return answers
}

function namesIn(folder: string): string[] {
  try {
    return readdirSync(folder).filter((name) => name.endsWith('.sock'))
  } catch (error) {
    // A folder of another user is an error.
    if (!hasCode(error, 'ENOENT')) throw error
    return []
  }
}

/** Asks one service to reload; null where its process has crashed. */
function ask(path: string): Promise<ReloadAnswer | null> {
  return new Promise((resolve) => {
    const socket = connect(path)
    let text = ''
    const cancel = systemClock.after(ANSWER_MS_MAX, () => {
      resolve({ error: 'the service did not answer in time', needsRestart: [] })
      socket.destroy()
    })
    socket.on('close', cancel)
    socket.on('connect', () => socket.write('reload\n'))
    socket.on('data', (bytes) => {
      text += bytes
    })
    socket.on('error', () => resolve(null))
    socket.on('end', () => resolve(text === '' ? null : JSON.parse(text)))
  })
}

/**
 * Takes the models, the buckets and the limit of lines in flight from `next`, and the rest from the running
 * configuration; names the changed sections that need a restart.
 */
export function reloaded(running: Config, next: Config): { config: Config; needsRestart: string[] } {
  const { models, buckets } = next
  const worker = { ...running.worker, concurrency_max: next.worker.concurrency_max }
  const config = { ...running, models, buckets, worker }
  const needsRestart = Object.keys(next).filter((key) => {
    const text = (of: Config): string =>
      JSON.stringify(Reflect.get(of, key), (_, value) => (value instanceof Map ? [...value] : value))
    return text(config) !== text(next)
  })
  return { config, needsRestart }
}

/** Changes `models` in place, for all readers of the map. The learned sizes of a model are kept. */
export function replaceModels(models: Map<string, Model>, config: Config): void {
  const before = new Map(models)
  models.clear()
  for (const [id, model] of modelsById(config.models)) {
    const known = before.get(id)
    models.set(id, known ? { ...model, created: known.created, seen: known.seen } : model)
  }
}
