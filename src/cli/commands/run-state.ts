// The state that an interrupted run needs to be resumed, stored beside its output and removed when the run is done.
// The nonce separates runs of the same file; the hash shows whether the file has changed.
import { createHash, randomBytes } from 'node:crypto'
import { readFile, rename, rm, writeFile } from 'node:fs/promises'
import Type, { type Static } from 'typebox'
import { Value } from 'typebox/value'
import { hasCode } from '../terminal/failure.ts'

const Dedupe = Type.Union([Type.Literal(true), Type.Literal('force')])

const RunState = Type.Object({
  version: Type.Literal(1),
  /** The service of the batch: a base URL, or the data folder of an embedded service. */
  target: Type.String(),
  window: Type.String(),
  metadata: Type.Record(Type.String(), Type.String()),
  dedupe: Type.Optional(Dedupe),
  input_sha256: Type.String(),
  nonce: Type.String(),
  file_id: Type.String(),
  batch_id: Type.Union([Type.String(), Type.Null()]),
})
export type RunState = Static<typeof RunState>

/** The terms that must be equal for an earlier run to be resumed. */
export interface RunTerms {
  target: string
  window: string
  metadata: Record<string, string>
  dedupe?: Static<typeof Dedupe> | undefined
}

export function runStatePath(output: string): string {
  return `${output}.offpeak-run.json`
}

export function newRunState(terms: RunTerms, input_sha256: string, file_id: string): RunState {
  const { target, window, metadata, dedupe } = terms
  return {
    version: 1,
    target,
    window,
    metadata,
    ...(dedupe === undefined ? {} : { dedupe }),
    input_sha256,
    nonce: randomBytes(12).toString('hex'),
    file_id,
    batch_id: null,
  }
}

export function sameTerms(state: RunState, terms: RunTerms): boolean {
  return (
    state.target === terms.target &&
    state.window === terms.window &&
    state.dedupe === terms.dedupe &&
    metadataText(state.metadata) === metadataText(terms.metadata)
  )
}

/** Equal for every attempt to create the batch of this run, and different for every other run. */
export function idempotencyKey(state: RunState): string {
  const { input_sha256, window, metadata, file_id, nonce, dedupe } = state
  const parts = [input_sha256, window, metadataText(metadata), file_id, nonce]
  if (dedupe !== undefined) parts.push(String(dedupe))
  return `run-${createHash('sha256').update(JSON.stringify(parts)).digest('hex').slice(0, 48)}`
}

/** Undefined when there is no state that this version can read. */
export async function readRunState(path: string): Promise<RunState | undefined> {
  try {
    const parsed: unknown = JSON.parse(await readFile(path, 'utf8'))
    return Value.Check(RunState, parsed) ? parsed : undefined
  } catch (error) {
    if (hasCode(error, 'ENOENT') || error instanceof SyntaxError) return undefined
    throw error
  }
}

export async function writeRunState(path: string, state: RunState): Promise<void> {
  const partial = `${path}.part`
  await writeFile(partial, `${JSON.stringify(state, null, 2)}\n`)
  await rename(partial, path)
}

export async function removeRunState(path: string): Promise<void> {
  await rm(path, { force: true })
}

function metadataText(metadata: Record<string, string>): string {
  return JSON.stringify(Object.entries(metadata).sort(([a], [b]) => (a < b ? -1 : 1)))
}
