// A queued batch in a real SQLite with real encrypted blobs, for tests of one part of the worker. No other part runs,
// and time passes only when the test moves the clock.
import { randomBytes } from 'node:crypto'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { classify } from '../../src/backends/verdict/classify.ts'
import { masterKeyFromText } from '../../src/blobs/master-key.ts'
import { type SealedBlobs, sealBlobs } from '../../src/blobs/sealed.ts'
import { FINISHED } from '../../src/dispatch/line-state.ts'
import type { Run } from '../../src/dispatch/run.ts'
import type { DedupeMode, Reask } from '../../src/domain/batch.ts'
import { DEFAULT_ENDPOINT } from '../../src/domain/endpoint.ts'
import { type ErrorCode, wireError } from '../../src/domain/errors.ts'
import { newId } from '../../src/domain/ids.ts'
import type { Log } from '../../src/domain/log.ts'
import type { Model } from '../../src/domain/model.ts'
import { NO_ATTEMPTS } from '../../src/results/line-record.ts'
import { recordAnswer, recordFailure } from '../../src/results/record-line.ts'
import { insertBatch, moveBatch, readBatchInput, setBatch } from '../../src/store/batches.ts'
import { insertBlobs } from '../../src/store/blobs.ts'
import { claimChunks, claimRemote } from '../../src/store/chunk-claims.ts'
import { insertChunks } from '../../src/store/chunks.ts'
import { ensureProject } from '../../src/store/projects.ts'
import { insertRow, readRow } from '../../src/store/rows.ts'
import type { BatchRow, ChunkRow } from '../../src/store/schema.ts'
import { sqliteStore } from '../../src/store/sqlite/store.ts'
import type { Store } from '../../src/store/store.ts'
import { openSession } from '../../src/store/workers.ts'
import { ChunkReader } from '../../src/worker/claim/chunk-reader.ts'
import { testClock } from '../fakes/clock.ts'
import { ANSWER } from '../fakes/scripted-backend.ts'
import { memoryBlobs } from '../simulation/memory-blobs.ts'
import { makeMigratedSqlite } from './migrated-sqlite.ts'

const LEASE_MS = 60_000
const WINDOW_MS = 24 * 3_600_000
const SERVER = { name: 'server', tier: 0, price: null }
/** Far more than any test needs, so that a condition that never holds fails the test. */
const STEPS_MAX = 100_000
export const SILENT: Log = { info() {}, warn() {}, error() {} }

/** The model of every line: a token costs 1,000 nano-dollars, and a line may generate 10 of them. */
const MODEL: Model = {
  id: 'm',
  context_window: null,
  max_output_tokens: 10,
  price: { input_picos: 1_000_000, output_picos: 1_000_000 },
  priced: true,
  supports: { structured_output: true, tools: true },
  endpoints: ['/v1/chat/completions'],
  created: 0,
}

export interface BatchSize {
  chunks: number
  /** Lines of each chunk. */
  lines: number
  dedupe?: DedupeMode | undefined
  reask?: Reask | undefined
  /** Of the line with this number; `l<n>` unless told. */
  content?: ((line: number) => string) | undefined
  /** The model that a line names; `m` unless told. */
  model?: ((line: number) => string) | undefined
  /** Of the batch's completion window; a day unless told. */
  windowMs?: number | undefined
}

/** Three attempts, 100 ms apart; an unreachable server is not waited for. */
export const RETRY = {
  attempts_max: 3,
  backoff_min_ms: 100,
  backoff_max_ms: 100,
  outage_patience_ms: 0,
  throttled_attempts_max: 20,
  throttled_share: 0.5,
}

export async function queuedBatch(size: BatchSize) {
  const folder = await mkdtemp(join(tmpdir(), 'offpeak-queued-'))
  const clock = testClock()
  const path = join(folder, 'offpeak.db')
  await makeMigratedSqlite(path)
  const store = sqliteStore({ path, leaseNow: clock.now })
  const blobs = memoryBlobs(clock, () => 0)
  const sealed = sealBlobs(blobs, masterKeyFromText(randomBytes(32).toString('base64'), 'a test'))
  const models = new Map([[MODEL.id, MODEL]])
  const reader = new ChunkReader({ store, sealed, clock, log: SILENT, models })
  const { id, project_id } = await addQueuedBatch(store, sealed, size, clock.now())
  return {
    clock,
    store,
    blobs,
    sealed,
    models,
    project_id,
    /** Resolves when the condition holds; meanwhile time passes in steps. */
    async until(condition: () => boolean, stepMs = 0): Promise<void> {
      for (let steps = 0; !condition(); steps++) {
        if (steps === STEPS_MAX) throw new Error(`it never became true: ${condition}`)
        await clock.advance(stepMs)
      }
    },
    /** A new worker leases and opens every chunk that is ready. */
    async open(): Promise<Run[]> {
      const claims = await store.write(async (tx) => {
        const worker_id = await openSession(tx, LEASE_MS, clock.now())
        const ended = await claimRemote(tx, worker_id, size.chunks)
        return [...ended, ...(await claimChunks(tx, { worker_id, urgentBefore: 0, count: size.chunks }))]
      })
      const input = (await readBatchInput(store.read, id))!
      return await Promise.all(claims.map((claim) => reader.read(claim, input)))
    },
    batch: async (): Promise<BatchRow> => (await readRow(store.read, 'batches', { id }))!,
    chunks: async (): Promise<ChunkRow[]> =>
      await store.read.selectFrom('chunks').selectAll().orderBy('idx').execute(),
    async [Symbol.asyncDispose]() {
      await store.close()
      await rm(folder, { recursive: true, force: true })
    },
  }
}

/** Line `n` of the file has the custom_id `l<n>` and the entity `user:a`. */
export async function addQueuedBatch(
  store: Store,
  sealed: SealedBlobs,
  {
    chunks,
    lines,
    dedupe,
    reask,
    content = (line) => `l${line}`,
    model = () => MODEL.id,
    windowMs = WINDOW_MS,
  }: BatchSize,
  now: number,
): Promise<BatchRow> {
  const texts = Array.from({ length: chunks }, (_, idx) =>
    Array.from({ length: lines }, (_, i) =>
      requestLine(idx * lines + i + 1, content, model, reask !== undefined),
    ).join(''),
  )
  const file_id = newId('file', now)
  const upload = await sealed.put('p', `files/${file_id}/upload`, [Buffer.from(texts.join(''))])
  return await store.write(async (tx) => {
    const { id: project_id } = await ensureProject(tx, { id: 'p', name: 'p', plan: 'payg', created: now })
    await insertBlobs(tx, project_id, [upload], now)
    await insertRow(tx, 'files', {
      id: file_id,
      project_id,
      purpose: 'batch',
      filename: 'in.jsonl',
      bytes: upload.bytes,
      line_count: chunks * lines,
      status: 'processed',
      created: now,
      expires_at: now + 2 * WINDOW_MS,
      content_blob: upload.key,
    })
    const batch = await insertBatch(tx, {
      id: newId('batch', now),
      project_id,
      key_id: 'key_1',
      endpoint: '/v1/chat/completions',
      input_file_id: file_id,
      completion_window: '24h',
      header_entity: 'user:a',
      total: chunks * lines,
      ...(dedupe === undefined ? {} : { dedupe }),
      reask: reask === undefined ? null : JSON.stringify(reask),
      created: now,
      expires_at: now + windowMs,
    })
    let at = 0
    const spans = texts.map((text, index) => {
      const byte_start = at
      at += text.length
      const first_line = index * lines + 1
      const models = new Set(Array.from({ length: lines }, (_, i) => model(first_line + i)))
      const only = models.size === 1 ? model(first_line) : null
      return { index, first_line, line_count: lines, byte_start, byte_end: at, model: only }
    })
    await insertChunks(tx, batch, spans)
    await setBatch(tx, batch.id, { chunk_count: chunks })
    await moveBatch(tx, batch.id, 'queued', now)
    return batch
  })
}

function requestLine(
  line: number,
  content: (line: number) => string,
  model: (line: number) => string,
  hasSchema: boolean,
): string {
  const format = hasSchema && {
    response_format: { type: 'json_schema', json_schema: { name: 's', schema: {} } },
  }
  const body = { model: model(line), messages: [{ role: 'user', content: content(line) }], ...format }
  return `${JSON.stringify({ custom_id: `l${line}`, method: 'POST', url: '/v1/chat/completions', body })}\n`
}

/** Ends lines as if the server had answered them with `ANSWER`, or with an error: by default, that of a rejection. */
export function endLines(
  run: Run,
  positions: readonly number[],
  part: 'output' | 'error' = 'output',
  code: ErrorCode = 'upstream_rejected',
): void {
  const now = run.batch.created
  const result = classify({ status: 200, body: Buffer.from(JSON.stringify(ANSWER)) }, DEFAULT_ENDPOINT)
  for (const position of positions) {
    const line = run.recorded(position)
    if (part === 'error') recordFailure(line, wireError(code), now)
    else if (result.kind === 'answered')
      recordAnswer(line, result, { upstream: SERVER, model: MODEL }, NO_ATTEMPTS, now)
    run.move(position, FINISHED, 'a test has ended it')
  }
}
