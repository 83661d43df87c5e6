// The output of an engine may quote lines and keys. It goes to a file of its own that only this user may read, and
// never to the log. The log and callers are told the kind of its last words.
import { appendFile, mkdir, rename, stat } from 'node:fs/promises'
import { dirname, join } from 'node:path'

/** A file of this size becomes `….1`, in place of the one before. */
const FILE_BYTES_MAX = 8 * 1024 * 1024
const LINES_KEPT = 20
const LINE_LENGTH_MAX = 300

/** Where the engine of an upstream writes. */
export function outputFileOf(data_dir: string, name: string, model: string): string {
  return join(data_dir, 'engines', `${`${name}-${model}`.replaceAll(/[^\w.-]+/g, '_').slice(0, 100)}.log`)
}

export class EngineOutput {
  readonly path: string
  readonly #bytesMax: number
  readonly #last: string[] = []
  #rest = ''
  #written: Promise<void> = Promise.resolve()
  /** Null until the file has been looked at. */
  #bytes: number | null = null

  constructor(path: string, bytesMax = FILE_BYTES_MAX) {
    this.path = path
    this.#bytesMax = bytesMax
  }

  /** Resolves when it is in the file. Never rejects: an engine does not end because a disk is full. */
  write(piece: Buffer): Promise<void> {
    this.#remember(piece.toString())
    this.#written = this.#written.then(() => this.#append(piece)).catch(() => {})
    return this.#written
  }

  /** What its last lines tell of its end; null: nothing that is known. */
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
