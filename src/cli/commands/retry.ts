// retry: runs the failed lines of a batch again, as a new file with the bytes of the input and a new batch.
import { createReadStream, createWriteStream } from 'node:fs'
import { mkdtemp, rename, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { pipeline } from 'node:stream/promises'
import type { Command } from 'commander'
import { Value } from 'typebox/value'
import { BatchObject } from '../../wire/batch.ts'
import { type ApiFlags, apiCommand, withApi } from '../client/api-command.ts'
import { mayRetry } from '../client/api-error.ts'
import { byteLines } from '../client/byte-lines.ts'
import type { ApiClient } from '../client/client.ts'
import { download } from '../client/download.ts'
import { InputLine } from '../client/shapes.ts'
import { uploadInput } from '../client/upload.ts'
import { type Watch, watchBatch, watchFile } from '../client/watch-batch.ts'
import type { Shell } from '../shell.ts'
import { EXIT_LINES_FAILED, Failure } from '../terminal/failure.ts'
import { counted } from '../terminal/format.ts'
import { commaList, examples } from '../terminal/option-values.ts'
import { progressView } from '../terminal/progress-view.ts'
import { printJson } from '../terminal/table.ts'
import { writeLine } from '../terminal/terminal.ts'
import { failedLines } from './failed-lines.ts'

interface RetryFlags extends ApiFlags {
  code?: string[]
  window?: string
  wait?: boolean
  merge?: string
}

export function addRetry(program: Command, shell: Shell): void {
  examples(
    apiCommand(program, 'retry', 'run the failed lines of a batch again in a new batch')
      .argument('<batch_id>', 'a finished batch')
      .option('--code <list>', 'only lines with these error codes, separated by commas', commaList)
      .option('--window <duration>', 'completion window (default: that of the batch)')
      .option('--wait', 'follow the new batch until it is finished')
      .option('--merge <file>', 'wait, then write the answers of both batches there')
      .action((id: string, flags: RetryFlags) => retryBatch(shell, id, flags)),
    'offpeak retry batch_01k0…',
    'offpeak retry batch_01k0… --code batch_expired,upstream_timeout --merge answers.jsonl',
  )
}

async function retryBatch(shell: Shell, id: string, flags: RetryFlags): Promise<void> {
  const { stdout, stderr } = shell.terminal
  const signal = shell.interruption()
  const view = progressView(stderr, shell.clock)
  const show = (batch: BatchObject): void => {
    view.stop()
    if (flags.json) printJson(stdout, batch)
    else writeLine(stdout, batch.id)
  }
  await withApi(shell, flags, async ({ client, pace }) => {
    const watch = { view, pace, clock: shell.clock, signal }
    const folder = await mkdtemp(join(tmpdir(), 'offpeak-retry-'))
    try {
      const old = await client.get(BatchObject, `/v1/batches/${encodeURIComponent(id)}`)
      const lines = await failedOf(client, old, flags.code, folder)
      const permanent =
        lines.permanent === 0 ? '' : `; ${lines.permanent} of them will fail again unless the input is fixed`
      view.message(`${counted(lines.ids.size, 'failed line')} of ${id}${permanent}`)
      const made = await resubmit(
        client,
        old,
        lines.ids,
        flags.window ?? old.completion_window,
        folder,
        watch,
      )
      if (!flags.wait && flags.merge === undefined) return show(made)
      const done = await watchBatch(client, made.id, watch)
      view.stop()
      if (flags.merge !== undefined) {
        await merge(client, old, done, flags.merge, signal)
        writeLine(stderr, `answers of both batches: ${flags.merge}`)
      }
      shell.exit(done.status === 'completed' && done.request_counts.failed === 0 ? 0 : EXIT_LINES_FAILED)
      show(done)
    } finally {
      view.stop()
      await rm(folder, { recursive: true, force: true })
    }
  })
}

/** The custom_ids of lines that failed with one of `codes` (any, if undefined), and how many of them would fail again. */
async function failedOf(
  client: ApiClient,
  batch: BatchObject,
  codes: readonly string[] | undefined,
  folder: string,
): Promise<{ ids: Set<string>; permanent: number }> {
  const ids = new Set<string>()
  let permanent = 0
  const path = join(folder, 'errors.jsonl')
  await download(client, batch.error_file_id, path)
  for await (const { custom_id, code } of failedLines(createReadStream(path))) {
    if (codes !== undefined && !codes.includes(code)) continue
    ids.add(custom_id)
    if (!mayRetry(code)) permanent++
  }
  if (ids.size > 0) return { ids, permanent }
  const which = codes === undefined ? '' : ` with ${codes.join(' or ')}`
  throw new Failure(
    `${batch.id} is ${batch.status} and has no failed line${which}; there is nothing to retry`,
  )
}

async function resubmit(
  client: ApiClient,
  old: BatchObject,
  ids: ReadonlySet<string>,
  window: string,
  folder: string,
  watch: Watch,
): Promise<BatchObject> {
  const input = join(folder, 'input.jsonl')
  await download(client, old.input_file_id, input, watch.signal)
  const path = join(folder, `retry-of-${old.id}.jsonl`)
  await pipeline(linesWith(createReadStream(input), ids), createWriteStream(path))
  const { file } = await uploadInput(client, path)
  await watchFile(client, file.id, watch)
  return await client.post(
    BatchObject,
    '/v1/batches',
    {
      input_file_id: file.id,
      endpoint: old.endpoint,
      completion_window: window,
      metadata: { ...old.metadata, retry_of: old.id },
    },
    { 'idempotency-key': `retry-${file.id}` },
  )
}

/** Yields the lines whose custom_id is in `ids`, byte for byte. */
export async function* linesWith(
  blocks: AsyncIterable<Buffer>,
  ids: ReadonlySet<string>,
): AsyncGenerator<Buffer> {
  for await (const line of byteLines(blocks)) {
    // A byte order mark is not part of the first line.
    const text = line.toString().replace(/^\uFEFF/, '')
    if (text.trim() === '') continue
    const parsed: unknown = JSON.parse(text)
    if (Value.Check(InputLine, parsed) && ids.has(parsed.custom_id)) yield Buffer.concat([line, NEWLINE])
  }
}

const NEWLINE = Buffer.from('\n')

/** Writes the answers of the first batch, then those of the second; no line is in both. */
async function merge(
  client: ApiClient,
  first: BatchObject,
  second: BatchObject,
  path: string,
  signal: AbortSignal,
): Promise<void> {
  const whole = `${path}.merge`
  const added = `${path}.added`
  try {
    await download(client, first.output_file_id, whole, signal)
    await download(client, second.output_file_id, added, signal)
    await pipeline(createReadStream(added), createWriteStream(whole, { flags: 'a' }))
    await rename(whole, path)
  } finally {
    await rm(whole, { force: true })
    await rm(added, { force: true })
  }
}
