// retry: has the service run the failed lines of a batch again, in a new batch.
import { randomUUID } from 'node:crypto'
import { createReadStream, createWriteStream } from 'node:fs'
import { rename, rm } from 'node:fs/promises'
import { pipeline } from 'node:stream/promises'
import type { Command } from 'commander'
import { BatchObject } from '../../wire/batch.ts'
import { BatchErrors } from '../../wire/batch-line.ts'
import { type ApiClient, pathOf } from '../client/client.ts'
import { type ApiFlags, apiCommand, withApi } from '../client/connect.ts'
import { download } from '../client/download.ts'
import { watchBatch } from '../client/watch-batch.ts'
import type { Shell } from '../shell.ts'
import { EXIT_LINES_FAILED } from '../terminal/failure.ts'
import { counted } from '../terminal/format.ts'
import { commaList, examples } from '../terminal/option-values.ts'
import { printJson } from '../terminal/table.ts'
import { writeLine } from '../terminal/terminal.ts'

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
  const show = (batch: BatchObject): void => {
    if (flags.json) printJson(stdout, batch)
    else writeLine(stdout, batch.id)
  }
  await withApi(shell, flags, async ({ client, watch, embedded, answer }) => {
    const path = pathOf('batches', id)
    const old = await client.get(BatchObject, path)
    const { lines, permanent } = await countFailed(client, id, flags.code)
    const order = { codes: flags.code, completion_window: flags.window }
    const made = await client.post(BatchObject, `${path}/retry`, order, {
      'idempotency-key': `retry-${randomUUID()}`,
    })
    const again = permanent === 0 ? '' : `; ${permanent} of them will fail again unless the input is fixed`
    watch.view.message(`${counted(lines, 'failed line')} of ${id}${again}`)
    // A service that ends with the command answers nothing later.
    if (!flags.wait && !embedded && flags.merge === undefined) return show(made)
    answer(made.id)
    const done = await watchBatch(client, made.id, watch)
    watch.view.stop()
    if (flags.merge !== undefined) {
      await merge(client, old, done, flags.merge, watch.signal)
      writeLine(stderr, `answers of both batches: ${flags.merge}`)
    }
    shell.exit(done.status === 'completed' && done.request_counts.failed === 0 ? 0 : EXIT_LINES_FAILED)
    show(done)
  })
}

/** How many of its failed lines have one of these codes (any, if undefined), and how many of them fail again. */
async function countFailed(
  client: ApiClient,
  id: string,
  codes: readonly string[] | undefined,
): Promise<{ lines: number; permanent: number }> {
  const { groups, other } = await client.get(BatchErrors, `/v1/batches/${encodeURIComponent(id)}/errors`)
  const chosen = groups.filter(({ code }) => codes === undefined || codes.includes(code))
  const sum = (some: typeof groups): number => some.reduce((total, { lines }) => total + lines, 0)
  return {
    lines: sum(chosen) + (codes === undefined ? other : 0),
    permanent: sum(chosen.filter(({ retryable }) => !retryable)),
  }
}

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
