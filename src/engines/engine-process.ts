// Runs an engine as a process: starts, watches and stops it with all its child processes, and writes its output to a
// file. A shell script ensures that no process remains, however the worker ends.
import { spawn } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { mkdirSync, writeFileSync } from 'node:fs'
import { appendFile, mkdir, rename, stat } from 'node:fs/promises'
import { constants } from 'node:os'
import { basename, dirname, join } from 'node:path'
import type { Duplex } from 'node:stream'
import { sleep, systemClock } from '../domain/clock.ts'

// The shell script that runs an engine. The worker has the other end of fd 3: a line on it, or its end (however the
// worker ended), stops the engine. At the end the whole process group is killed, and on Linux whatever else carries
// the engine's tag in its environment, for engines whose children leave the group. The engine's exit status is
// reported on fd 3. The engine's folder is removed with it. Arguments: tag, tenths of a second between SIGTERM and
// SIGKILL, folder (may be empty), command.

const GUARD_SCRIPT = String.raw`
tag=$1 tenths=$2 folder=$3
shift 3

kill_rest() {
  [ -z "$folder" ] || rm -rf -- "$folder"
  for path in $(grep -lsz "^OFFPEAK_ENGINE=$tag\$" /proc/[0-9]*/environ 2>/dev/null); do
    kill -KILL "$(echo "$path" | cut -d/ -f3)" 2>/dev/null
  done
  kill -KILL -$$
}

# Caught, not ignored: an ignored signal would stay ignored in the engine.
trap : HUP INT TERM
OFFPEAK_ENGINE=$tag "$@" </dev/null 3<&- &
engine=$!
(
  trap '' HUP INT TERM
  read -r _ <&3
  kill -TERM -$$
  while [ "$tenths" -gt 0 ] && kill -0 "$engine" 2>/dev/null; do
    sleep 0.1
    tenths=$((tenths - 1))
  done
  kill_rest
) &

# A caught signal ends wait early.
while :; do
  wait "$engine"
  status=$?
  kill -0 "$engine" 2>/dev/null || break
done
echo "$status" >&3
kill_rest
`

/** The time between SIGTERM and SIGKILL in tenths of a second. */
const STOP_TENTHS = 50
/** The time in ms for reading the rest of the output after the exit. */
const OUTPUT_MS_MAX = 500

export interface EngineOrder {
  command: readonly string[]
  /** The whole environment of the engine's process. */
  env: Readonly<Record<string, string>>
  /** The folder that is removed when the process has ended; null where it needs none. */
  folder: string | null
  /** The files of the engine that are written before its start, by path. */
  files: Readonly<Record<string, string>>
}

export interface EngineProcess {
  readonly pid: number | undefined
  /** The value of OFFPEAK_ENGINE in the environment of the process and its children. */
  readonly tag: string
  /** Resolves when the process has exited: "exited with 1". Never rejects. */
  readonly exited: Promise<string>
  /** Stops the engine; resolves when none of its processes is left. */
  stop(): Promise<void>
}

export type LaunchEngine = (order: EngineOrder, output: EngineOutput) => EngineProcess

/** The exit of the process as the system reports it. */
interface Exit {
  code: number | null
  signal: string | null
  error?: Error
}

export const launchEngine: LaunchEngine = ({ command, env, folder, files }, output) => {
  const tag = randomUUID()
  for (const [path, text] of Object.entries(files)) {
    mkdirSync(dirname(path), { mode: 0o700, recursive: true })
    writeFileSync(path, text, { mode: 0o600 })
  }
  const child = spawn(
    '/bin/sh',
    ['-c', GUARD_SCRIPT, 'engine-guard', tag, String(STOP_TENTHS), folder ?? '', ...command],
    {
      env,
      // In a new session and process group, so that Ctrl-C in a terminal reaches the worker alone.
      detached: true,
      stdio: ['ignore', 'pipe', 'pipe', 'pipe'],
    },
  )
  const exit = new Promise<Exit>((resolve) => {
    child.on('error', (error) => resolve({ code: null, signal: null, error }))
    child.on('exit', (code, signal) => resolve({ code, signal }))
  })
  const { pid, stdout, stderr } = child
  if (stdout === null || stderr === null) throw new Error('an engine was started without pipes')
  const streams = [stdout, stderr]
  // The other end of the guard's fd 3; closing it stops the engine.
  const control = child.stdio[3] as Duplex
  let status = ''
  control.on('data', (piece: Buffer) => {
    status += piece.toString()
  })
  control.on('error', () => {})
  control.on('end', () => control.destroy())
  for (const stream of streams) {
    stream.on('data', (piece: Buffer) => {
      stream.pause()
      void output.write(piece).then(() => stream.resume())
    })
    stream.on('error', () => {})
  }
  const outputRead = Promise.all(
    streams.map((stream) => new Promise((resolve) => stream.on('close', resolve))),
  )
  const exited = exit.then(async ({ code, signal, error }) => {
    if (error) return 'could not be started: the system did not make the process'
    // If the guard itself was killed, its watcher kills the other processes when the pipe closes.
    control.end()
    const read = new AbortController()
    void outputRead.then(() => read.abort())
    await sleep(systemClock, OUTPUT_MS_MAX, read.signal)
    control.destroy()
    return howItEnded(status.trim(), code, signal, command[0] ?? '')
  })
  return {
    pid,
    tag,
    exited,
    async stop() {
      control.end()
      await exited
    },
  }
}

/** Describes an exit. `status`: the engine's, as reported by the shell; '' if the guard was killed. */
function howItEnded(status: string, code: number | null, signal: string | null, program: string): string {
  const found = status === '' ? code : Number(status)
  if (found === 127) return `could not be started: there is no program ${basename(program)} on the PATH`
  if (found === 126) return `could not be started: ${basename(program)} is not executable`
  if (found === null) return signal === null ? 'exited' : `was killed by ${signal}`
  const name = Object.entries(constants.signals).find(([, number]) => number === found - 128)?.[0]
  return found > 128 && name !== undefined ? `was killed by ${name}` : `exited with ${found}`
}

// The output of an engine may quote lines and keys. It goes to a file of its own that only this user may read, and
// never to the log. The log and callers are told the kind of its last words.

/** The size in bytes from which a file is renamed to `….1`, replacing the previous one. */
const FILE_BYTES_MAX = 8 * 1024 * 1024
const LINES_KEPT = 20
const LINE_LENGTH_MAX = 300

/** The file for the output of an upstream's engine. */
export function outputFileOf(data_dir: string, name: string, model: string): string {
  return join(data_dir, 'engines', `${`${name}-${model}`.replaceAll(/[^\w.-]+/g, '_').slice(0, 100)}.log`)
}

export class EngineOutput {
  readonly path: string
  readonly #bytesMax: number
  readonly #last: string[] = []
  #rest = ''
  #written: Promise<void> = Promise.resolve()
  /** The size of the output file in bytes; null until it is known. */
  #bytes: number | null = null

  constructor(path: string, bytesMax = FILE_BYTES_MAX) {
    this.path = path
    this.#bytesMax = bytesMax
  }

  /** Writes to the file; resolves when done. Never rejects: an engine must not end because a disk is full. */
  write(piece: Buffer): Promise<void> {
    this.#remember(piece.toString())
    this.#written = this.#written.then(() => this.#append(piece)).catch(() => {})
    return this.#written
  }

  /** The cause of the engine's exit, by its last lines; null: unknown. */
  get lastWords(): string | null {
    const lines = [...this.#last, this.#rest].reverse()
    return lines.map(kindOf).find((kind) => kind !== null) ?? null
  }

  #remember(text: string): void {
    const lines = (this.#rest + text).split(/\r\n|\n|\r/)
    this.#rest = (lines.pop() ?? '').slice(-LINE_LENGTH_MAX)
    this.#last.push(...lines.slice(-LINES_KEPT).map((line) => line.slice(0, LINE_LENGTH_MAX)))
    this.#last.splice(0, this.#last.length - LINES_KEPT)
  }

  async #append(piece: Buffer): Promise<void> {
    if (this.#bytes === null) {
      await mkdir(dirname(this.path), { recursive: true, mode: 0o700 })
      this.#bytes = await stat(this.path).then(
        ({ size }) => size,
        () => 0,
      )
    }
    if (this.#bytes > 0 && this.#bytes + piece.length > this.#bytesMax) {
      await rename(this.path, `${this.path}.1`)
      this.#bytes = 0
    }
    await appendFile(this.path, piece, { mode: 0o600 })
    this.#bytes += piece.length
  }
}

const KINDS: readonly [kind: string, words: RegExp][] = [
  [
    'out of memory',
    /out of memory|OutOfMemory|bad_alloc|cannot allocate memory|failed to allocate|not enough (GPU )?memory|KV cache .*(larger|less) than/i,
  ],
  ['port in use', /address already in use|EADDRINUSE|couldn't bind|error while attempting to bind/i],
  ['disk full', /no space left on device|ENOSPC/i],
  [
    'no access to the model',
    /gated repo|access to model .* is restricted|\b40[13] Client Error|Unauthorized for url/i,
  ],
  [
    'unknown argument',
    /unrecognized arguments?|unknown (argument|option)|invalid (argument|option)\b|no such option/i,
  ],
  [
    'missing library',
    /error while loading shared libraries|ModuleNotFoundError|ImportError|undefined symbol/,
  ],
  [
    'no usable GPU',
    /no CUDA-capable device|CUDA driver version|no NVIDIA driver|Failed to infer device type|no kernel image/i,
  ],
  [
    'model not found',
    /no such (file|model)|failed to (open|load) (the )?(GGUF|model)|repository not found|RepositoryNotFoundError|is not a (local folder|valid model)|does not exist/i,
  ],
  ['permission denied', /permission denied|EACCES/i],
]

function kindOf(line: string): string | null {
  return KINDS.find(([, words]) => words.test(line))?.[0] ?? null
}
