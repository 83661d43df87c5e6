// Secrets in files that may be replaced while the service runs: API keys and certificates. Files are looked at about
// once a second at most. Content that cannot be read or sent is reported once, and the last good content stays in use.
import { readFileSync, statSync } from 'node:fs'
import { type Certificates, certificateProblem, keyProblem } from '../domain/credentials.ts'
import { messageOf } from '../domain/errors.ts'

const LOOK_MS = 1_000

export type OnProblem = (problem: string) => void

export class SecretFiles<T> {
  readonly #paths: readonly string[]
  readonly #parse: (contents: readonly Buffer[]) => T
  readonly #problemOf: (found: T) => string | null
  readonly #onProblem: OnProblem
  #good: T | null = null
  #seen = ''
  #problem: string | null = null
  #lookedAt = Number.NEGATIVE_INFINITY

  constructor(
    paths: readonly string[],
    parse: (contents: readonly Buffer[]) => T,
    problemOf: (found: T) => string | null,
    onProblem: OnProblem,
  ) {
    this.#paths = paths
    this.#parse = parse
    this.#problemOf = problemOf
    this.#onProblem = onProblem
  }

  /** Returns the last good content, `now` in ms of any clock; null before there is any. */
  read(now: number = performance.now()): T | null {
    if (now - this.#lookedAt < LOOK_MS) return this.#good
    this.#lookedAt = now
    try {
      const seen = this.#paths.map(versionOf).join()
      if (seen === this.#seen) return this.#good
      const found = this.#parse(this.#paths.map((path) => readFileSync(path)))
      this.#seen = seen
      const problem = this.#problemOf(found)
      if (problem === null) this.#good = found
      this.#report(problem)
    } catch (error) {
      this.#report(`cannot be read (${messageOf(error)})`)
    }
    return this.#good
  }

  #report(problem: string | null): void {
    if (problem !== null && problem !== this.#problem)
      this.#onProblem(`${this.#paths.join(', ')}: ${problem}`)
    this.#problem = problem
  }
}

function versionOf(path: string): string {
  const { mtimeMs, size, ino } = statSync(path)
  return `${mtimeMs} ${size} ${ino}`
}

export function keyFile(path: string, onProblem: OnProblem): SecretFiles<string> {
  return new SecretFiles([path], ([content]) => String(content).trim(), keyProblem, onProblem)
}

const PARTS = { ca_file: 'ca', client_cert_file: 'cert', client_key_file: 'key' } as const

/** The certificate files of an upstream's configuration, read together, since a certificate needs its key. */
export function certificateFiles(
  files: Readonly<Record<keyof typeof PARTS, string | null>>,
  onProblem: OnProblem,
): SecretFiles<Certificates> {
  const named = (['ca_file', 'client_cert_file', 'client_key_file'] as const).flatMap((file) => {
    const path = files[file]
    return path === null ? [] : [{ path, part: PARTS[file] }]
  })
  return new SecretFiles<Certificates>(
    named.map(({ path }) => path),
    (contents) => Object.fromEntries(named.map(({ part }, i) => [part, contents[i]])),
    certificateProblem,
    onProblem,
  )
}
