// batches: create, list, follow and cancel batches, and download their results.
import { randomUUID } from 'node:crypto'
import type { Command } from 'commander'
import { BATCH_STATUSES, isTerminal } from '../../domain/batch.ts'
import { DEFAULT_ENDPOINT } from '../../domain/endpoint.ts'
import { BatchObject } from '../../wire/batch.ts'
import { type ApiFlags, apiCommand, withApi } from '../client/api-command.ts'
import { downloadResults } from '../client/download-results.ts'
import { followResults } from '../client/follow-results.ts'
import { watchBatch } from '../client/watch-batch.ts'
import type { Shell } from '../shell.ts'
import { Failure } from '../terminal/failure.ts'
import { humanCount, humanTime, humanUsd } from '../terminal/format.ts'
import {
  type DedupeFlag,
  dedupeOption,
  examples,
  pairs,
  pointInTime,
  wholeNumber,
} from '../terminal/option-values.ts'
import { percent } from '../terminal/progress-line.ts'
import { progressView } from '../terminal/progress-view.ts'
import { printFields, printJson, printTable } from '../terminal/table.ts'
import { writeData, writeLine } from '../terminal/terminal.ts'

interface CreateFlags extends ApiFlags {
  endpoint: string
  dedupe?: DedupeFlag
  window: string
  metadata?: Record<string, string>
  entity?: string
  idempotencyKey?: string
  notBefore?: number
}

interface ListFlags extends ApiFlags {
  limit: number
  status?: string
}

interface ResultFlags extends ApiFlags {
  follow?: boolean
  output?: string
  errors?: string
}

export function addBatches(program: Command, shell: Shell): void {
  const batches = program.command('batches').description('create, follow and cancel batches')

  examples(
    apiCommand(batches, 'create', 'create a batch of an uploaded file')
      .argument('<file_id>', 'an uploaded file whose status is processed')
      .option('--endpoint <path>', 'what its lines ask for', DEFAULT_ENDPOINT)
      .addOption(dedupeOption())
      .option('--window <duration>', 'completion window', '24h')
      .option('--metadata <key=value>', 'a pair of metadata; may be repeated', pairs)
      .option('--entity <type:id>', 'entity to attribute usage to; short for --metadata entity=…')
      .option(
        '--not-before <time>',
        'send nothing before, such as 2026-01-31T20:00Z, 20:00 or +2h',
        pointInTime,
      )
      .option('--idempotency-key <text>', 'a repeated call with the same key creates no second batch')
      .action((file_id: string, flags: CreateFlags) => createBatch(shell, file_id, flags)),
    'offpeak batches create file_01k0… --entity user:42',
    'offpeak batches create file_01k0… --not-before 20:00',
  )

  apiCommand(batches, 'list', 'show batches, newest first')
    .option('--limit <number>', 'how many', wholeNumber(1), 20)
    .option('--status <status>', `only one of ${BATCH_STATUSES.join(', ')}`)
    .action((flags: ListFlags) => listBatches(shell, flags))

  apiCommand(batches, 'get', 'show a batch')
    .argument('<id>', 'batch_…')
    .action((id: string, flags: ApiFlags) =>
      withApi(shell, flags, async ({ client }) =>
        show(shell, flags, await client.get(BatchObject, path(id))),
      ),
    )

  apiCommand(batches, 'wait', 'follow a batch until it is finished')
    .argument('<id>', 'batch_…')
    .action((id: string, flags: ApiFlags) => waitForBatch(shell, id, flags))

  apiCommand(batches, 'cancel', 'cancel a batch; no further line is sent')
    .argument('<id>', 'batch_…')
    .action((id: string, flags: ApiFlags) =>
      withApi(shell, flags, async ({ client }) =>
        show(shell, flags, await client.post(BatchObject, `${path(id)}/cancel`)),
      ),
    )

  for (const [action, description] of [
    ['pause', 'send nothing more of a batch until it is resumed; its window goes on'],
    ['resume', 'go on with a paused batch'],
  ] as const)
    apiCommand(batches, action, description)
      .argument('<id>', 'batch_…')
      .action((id: string, flags: ApiFlags) =>
        withApi(shell, flags, async ({ client }) =>
          show(shell, flags, await client.post(BatchObject, `${path(id)}/${action}`)),
        ),
      )

  examples(
    apiCommand(
      batches,
      'results',
      'download answers and failed lines; while the batch runs, those finished so far',
    )
      .argument('<id>', 'batch_…')
      .option('-o, --output <file>', 'answers (default: ID.out.jsonl)')
      .option('--errors <file>', 'failed lines (default: ID.errors.jsonl)')
      .option('--follow', 'write each line to standard output as it finishes, until the batch has ended')
      .action((id: string, flags: ResultFlags) =>
        flags.follow ? follow(shell, id, flags) : fetchResults(shell, id, flags),
      ),
    'offpeak batches results batch_01k0… -o answers.jsonl',
    'offpeak batches results batch_01k0… --follow | jq .custom_id',
  )
}

async function createBatch(shell: Shell, file_id: string, flags: CreateFlags): Promise<void> {
  const metadata = { ...flags.metadata, ...(flags.entity === undefined ? {} : { entity: flags.entity }) }
  await withApi(shell, flags, async ({ client }) => {
    const batch = await client.post(
      BatchObject,
      '/v1/batches',
      {
        input_file_id: file_id,
        endpoint: flags.endpoint,
        completion_window: flags.window,
        ...(flags.notBefore === undefined ? {} : { start_after: flags.notBefore }),
        ...(flags.dedupe === undefined ? {} : { dedupe: flags.dedupe }),
        ...(Object.keys(metadata).length === 0 ? {} : { metadata }),
      },
      // Without a key from the user, at least the retries of this call create one batch.
      { 'idempotency-key': flags.idempotencyKey ?? `cli-${randomUUID()}` },
    )
    if (flags.json) printJson(shell.terminal.stdout, batch)
    else writeLine(shell.terminal.stdout, batch.id)
  })
}

async function listBatches(shell: Shell, flags: ListFlags): Promise<void> {
  const { stdout } = shell.terminal
  await withApi(shell, flags, async ({ client }) => {
    const found = await client.list(BatchObject, '/v1/batches', flags.limit, { status: flags.status })
    if (flags.json) return printJson(stdout, found)
    printTable(
      stdout,
      ['ID', 'STATUS', 'DONE', 'LINES', 'FAILED', 'COST', 'CREATED', 'EXPIRES'],
      found.map(({ id, status, request_counts: counts, cost_usd, created, expires_at }) => [
        id,
        status,
        `${percent(counts.completed + counts.failed, counts.total)}%`,
        humanCount(counts.total),
        humanCount(counts.failed),
        humanUsd(cost_usd),
        humanTime(created),
        humanTime(expires_at),
      ]),
    )
  })
}

async function waitForBatch(shell: Shell, id: string, flags: ApiFlags): Promise<void> {
  const view = progressView(shell.terminal.stderr, shell.clock)
  await withApi(shell, flags, async ({ client, pace }) => {
    try {
      const signal = shell.interruption()
      const batch = await watchBatch(client, encodeURIComponent(id), {
        view,
        pace,
        clock: shell.clock,
        signal,
      })
      view.stop()
      if (flags.json) printJson(shell.terminal.stdout, batch)
    } finally {
      view.stop()
    }
  })
}

async function follow(shell: Shell, id: string, flags: ResultFlags): Promise<void> {
  if (flags.output !== undefined || flags.errors !== undefined)
    throw new Failure(
      '--follow writes to standard output; redirect it to a file instead of using -o or --errors',
    )
  const signal = shell.interruption()
  const { stdout } = shell.terminal
  await withApi(shell, flags, ({ client, pace }) =>
    followResults(client, path(id), {
      part: 'all',
      follow: true,
      write: (lines) => writeData(stdout, [lines]),
      pace,
      clock: shell.clock,
      signal,
    }),
  )
}

async function fetchResults(shell: Shell, id: string, flags: ResultFlags): Promise<void> {
  const { stdout, stderr } = shell.terminal
  const signal = shell.interruption()
  await withApi(shell, flags, async ({ client, pace }) => {
    const batch = await client.get(BatchObject, path(id))
    const { status } = batch
    const output = flags.output ?? `${id}.out.jsonl`
    const errors = flags.errors ?? `${id}.errors.jsonl`
    await downloadResults(client, batch, { output, errors }, { pace, clock: shell.clock, signal })
    if (flags.json) return printJson(stdout, { id, status, output, errors })
    if (!isTerminal(status))
      writeLine(stderr, `${id} is ${status}; the files hold the lines that are finished so far.`)
    writeLine(stderr, `answers: ${output}`)
    writeLine(stderr, `errors:  ${errors}${batch.request_counts.failed === 0 ? ' (empty)' : ''}`)
  })
}

function show(shell: Shell, flags: ApiFlags, batch: BatchObject): void {
  if (flags.json) printJson(shell.terminal.stdout, batch)
  else printFields(shell.terminal.stdout, batch)
}

function path(id: string): string {
  return `/v1/batches/${encodeURIComponent(id)}`
}
