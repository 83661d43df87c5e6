// batches: create, list, follow and cancel batches, and download their results.
import { randomUUID } from 'node:crypto'
import type { Command } from 'commander'
import { BATCH_STATUSES, isTerminal } from '../../domain/batch.ts'
import { DEFAULT_ENDPOINT } from '../../domain/endpoint.ts'
import { BatchObject } from '../../wire/batch.ts'
import { FoundLine } from '../../wire/batch-line.ts'
import { AnyObject } from '../client/api-error.ts'
import { pathOf } from '../client/client.ts'
import { type ApiFlags, apiCommand, withApi } from '../client/connect.ts'
import { downloadResults, followResults } from '../client/download.ts'
import { addCall, addList, showId } from '../client/object-commands.ts'
import { cancelBatch, watchBatch } from '../client/watch-batch.ts'
import type { Shell } from '../shell.ts'
import { Failure } from '../terminal/failure.ts'
import { humanCount, humanTime, humanUsd } from '../terminal/format.ts'
import {
  type DedupeFlag,
  dedupeOption,
  examples,
  type MetadataFlags,
  metadataOf,
  pointInTime,
  withMetadata,
} from '../terminal/option-values.ts'
import { percent } from '../terminal/progress-view.ts'
import { printJson } from '../terminal/table.ts'
import { writeData, writeLine, writeLines } from '../terminal/terminal.ts'

interface CreateFlags extends ApiFlags, MetadataFlags {
  endpoint: string
  dedupe?: DedupeFlag
  window: string
  idempotencyKey?: string
  notBefore?: number
  webhook?: string
}

interface ResultFlags extends ApiFlags {
  follow?: boolean
  output?: string
  errors?: string
}

export function addBatches(program: Command, shell: Shell): void {
  const batches = program.command('batches').description('create, follow and cancel batches')

  const create = addCall(shell, batches, 'create', {
    description: 'create a batch of an uploaded file',
    argument: ['file_id', 'an uploaded file whose status is processed'],
    call:
      (file_id, flags: CreateFlags) =>
      async (client, { embedded, options }) => {
        const batch = await client.post(BatchObject, '/v1/batches', newBatch(file_id, flags), {
          // Without a key from the user, at least the retries of this call create one batch.
          'idempotency-key': flags.idempotencyKey ?? `cli-${randomUUID()}`,
        })
        if (embedded)
          writeLine(shell.terminal.stderr, `To have it answered: offpeak batches wait ${batch.id}${options}`)
        return batch
      },
    show: showCreated,
  })
  create
    .option('--endpoint <path>', 'what its lines ask for', DEFAULT_ENDPOINT)
    .addOption(dedupeOption())
    .option('--window <duration>', 'completion window', '24h')
  withMetadata(create)
    .option(
      '--not-before <time>',
      'send nothing before, such as 2026-01-31T20:00Z, 20:00 or +2h',
      pointInTime,
    )
    .option('--webhook <url>', 'where the event of its end is sent; its secret is printed once')
    .option('--idempotency-key <text>', 'a repeated call with the same key creates no second batch')
  examples(
    create,
    'offpeak batches create file_01k0… --entity user:42',
    'offpeak batches create file_01k0… --not-before 20:00',
  )

  addList(shell, batches, 'list', {
    description: 'show batches, newest first',
    shape: BatchObject,
    path: () => '/v1/batches',
    filters: {
      status: ['--status <status>', `only one of ${BATCH_STATUSES.join(', ')}`],
      search: ['--search <words>', 'only those with all these words in ID, name, metadata or models'],
    },
    columns: {
      ID: ({ id }) => id,
      NAME: ({ name }) => name,
      STATUS: ({ status }) => status,
      DONE: ({ request_counts: counts }) => `${percent(counts.completed + counts.failed, counts.total)}%`,
      LINES: ({ request_counts: counts }) => humanCount(counts.total),
      FAILED: ({ request_counts: counts }) => humanCount(counts.failed),
      COST: ({ cost_usd }) => humanUsd(cost_usd),
      CREATED: ({ created }) => humanTime(created),
      EXPIRES: ({ expires_at }) => humanTime(expires_at),
    },
  })

  addList(shell, batches, 'find', {
    description: 'find lines of all batches by a part of their custom_id, the newest batch first',
    argument: 'a part of the custom_id',
    shape: FoundLine,
    path: (text) => `/v1/lines?custom_id=${encodeURIComponent(text)}`,
    columns: {
      BATCH: ({ batch_id }) => batch_id,
      LINE: ({ line }) => String(line),
      CUSTOM_ID: ({ custom_id }) => custom_id,
      STATUS: ({ status }) => status,
      COST: ({ cost_usd }) => humanUsd(cost_usd),
    },
  })

  addCall(shell, batches, 'get', {
    description: 'show a batch',
    argument: 'batch_…',
    call: (id) => (client) => client.get(BatchObject, pathOf('batches', id)),
  })

  apiCommand(batches, 'wait', 'follow a batch until it is finished')
    .argument('<id>', 'batch_…')
    .action((id: string, flags: ApiFlags) => waitForBatch(shell, id, flags))

  for (const [action, description] of [
    ['cancel', 'cancel a batch; no further line is sent'],
    ['pause', 'send nothing more of a batch until it is resumed; its window goes on'],
    ['resume', 'go on with a paused batch'],
  ] as const)
    addCall(shell, batches, action, {
      description,
      argument: 'batch_…',
      call: (id) => (client, connection) =>
        action === 'cancel'
          ? cancelBatch(connection, id)
          : client.post(BatchObject, `${pathOf('batches', id)}/${action}`),
    })

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

function newBatch(file_id: string, flags: CreateFlags): object {
  const metadata = metadataOf(flags)
  return {
    input_file_id: file_id,
    endpoint: flags.endpoint,
    completion_window: flags.window,
    ...(flags.notBefore === undefined ? {} : { start_after: flags.notBefore }),
    ...(flags.dedupe === undefined ? {} : { dedupe: flags.dedupe }),
    ...(Object.keys(metadata).length === 0 ? {} : { metadata }),
    ...(flags.webhook === undefined ? {} : { webhook: { url: flags.webhook } }),
  }
}

/** The ID alone is on standard output, for scripts. */
function showCreated(shell: Shell, batch: BatchObject): void {
  showId(shell, batch)
  const { id, secret } = batch.webhook ?? {}
  if (secret === undefined) return
  writeLine(shell.terminal.stderr, `The secret of its webhook ${id}, which is shown only once: ${secret}`)
}

async function waitForBatch(shell: Shell, id: string, flags: ApiFlags): Promise<void> {
  await withApi(shell, flags, async ({ client, watch, answer }) => {
    answer(id)
    const batch = await watchBatch(client, encodeURIComponent(id), watch)
    watch.view.stop()
    if (flags.json) printJson(shell.terminal.stdout, batch)
  })
}

async function follow(shell: Shell, id: string, flags: ResultFlags): Promise<void> {
  if (flags.output !== undefined || flags.errors !== undefined)
    throw new Failure(
      '--follow writes to standard output; redirect it to a file instead of using -o or --errors',
    )
  const write = (lines: Buffer): Promise<void> => writeData(shell.terminal.stdout, [lines])
  await withApi(shell, flags, ({ client, watch, answer }) => {
    answer(id)
    return followResults(client, pathOf('batches', id), { part: 'all', follow: true, write }, watch)
  })
}

async function fetchResults(shell: Shell, id: string, flags: ResultFlags): Promise<void> {
  const { stdout, stderr } = shell.terminal
  await withApi(shell, flags, async ({ client, watch }) => {
    const batch = await client.get(BatchObject, pathOf('batches', id))
    const { status } = batch
    const output = flags.output ?? `${id}.out.jsonl`
    const errors = flags.errors ?? `${id}.errors.jsonl`
    await downloadResults(client, batch, { output, errors }, watch)
    if (flags.json) return printJson(stdout, { id, status, output, errors })
    if (!isTerminal(status))
      writeLine(stderr, `${id} is ${status}; the files hold the lines that are finished so far.`)
    writeLine(stderr, `answers: ${output}`)
    writeLine(stderr, `errors:  ${errors}${batch.request_counts.failed === 0 ? ' (empty)' : ''}`)
  })
}

/** requests: shows the audit record of an HTTP call or of a line. */
export function addRequests(program: Command, shell: Shell): void {
  const requests = program.command('requests').description('look up audit records')
  const get = addCall(shell, requests, 'get', {
    description: 'show the audit record of a line or an HTTP call',
    argument: 'req_…, from a result line or the header X-Service-Request-Id',
    call: (id) => (client) => client.get(AnyObject, pathOf('requests', id)),
    show: ({ terminal }, record) => writeLines(terminal.stdout, JSON.stringify(record, null, 2)),
  })
  examples(get, 'offpeak requests get req_01k0…')
}
