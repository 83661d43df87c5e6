// batches: create, list, follow and cancel batches, and download their results. requests: shows audit records. retry:
// has the service run the failed lines of a batch again, in a new batch.
import type { Command } from 'commander'
import Type, { type Static } from 'typebox'
import { BATCH_SORTS, BATCH_STATUSES, isTerminal, mayRetry } from '../../domain/batch.ts'
import { DEFAULT_ENDPOINT } from '../../domain/endpoint.ts'
import { BatchObject } from '../../wire/batch.ts'
import { BatchErrors, FoundLine } from '../../wire/batch-line.ts'
import { LineRecord } from '../../wire/request-record.ts'
import { checkTerms, windowFor } from '../client/check-order.ts'
import { AnyObject, type ApiClient, ApiError, pathOf } from '../client/client.ts'
import { cancelBatch, withApi } from '../client/connect.ts'
import { createOnce } from '../client/create-once.ts'
import { contentOf, downloadResults, resultLines } from '../client/download.ts'
import { addCall, addList, addResource, showId } from '../client/object-commands.ts'
import { asksOf } from '../client/upload.ts'
import { watchBatch } from '../client/watch-batch.ts'
import { checkOutput, writeWhole } from '../output-file.ts'
import type { JsonFlags, Shell } from '../shell.ts'
import { EXIT_LINES_FAILED, Failure } from '../terminal/failure.ts'
import {
  type BatchFlags,
  commaList,
  examples,
  jsonCommand,
  metadataOf,
  termsOf,
  withBatchTerms,
} from '../terminal/option-values.ts'
import { percent } from '../terminal/progress-view.ts'
import {
  counted,
  humanCount,
  humanTime,
  humanUsd,
  printJson,
  writeData,
  writeLine,
  writeLines,
} from '../terminal/terminal.ts'
import { showBatch } from './status.ts'

interface CreateFlags extends JsonFlags, BatchFlags {
  endpoint?: string
  idempotencyKey?: string
  inputUrl?: string
  outputUrl?: string
  webhook?: string
}

/** The fields of a batch that are read after its creation: an unknown other field must not lose its ID. */
const Created = Type.Pick(BatchObject, ['id', 'webhook'])
type Created = Static<typeof Created>

interface ResultFlags extends JsonFlags {
  follow?: boolean
  output?: string
  errors?: string
}

export function addBatches(program: Command, shell: Shell): void {
  const batches = program.command('batches').description('create, follow and cancel batches')

  const create = addCall(shell, batches, 'create', {
    description: 'create a batch of an uploaded file, or of a file in a bucket',
    argument: ['[file_id]', 'an uploaded file whose status is processed'],
    call: (file_id, flags: CreateFlags) => {
      const order = newBatch(file_id, flags)
      return async (client, connection) => {
        const completion_window = await windowFor(client, flags.window)
        const terms = { window: completion_window, ...termsOf(flags), metadata: metadataOf(flags) }
        await checkTerms(client, terms, connection.watch)
        const endpoint = flags.endpoint ?? (await endpointOf(client, file_id))
        const body = { ...order, endpoint, completion_window }
        const { embedded, options } = connection
        const post = (key: string) => client.post(Created, '/v1/batches', body, { 'idempotency-key': key })
        const batch = await (flags.idempotencyKey === undefined
          ? createOnce(shell, connection, body, post)
          : post(flags.idempotencyKey))
        if (embedded)
          writeLine(shell.terminal.stderr, `To have it answered: offpeak batches wait ${batch.id}${options}`)
        return batch
      }
    },
    show: showCreated,
  })
  withBatchTerms(
    create.option('--endpoint <path>', 'what its lines ask for (default: what the first one does)'),
  )
    .option('--input-url <url>', 'in place of a file: one in a bucket, s3://bucket/path/input.jsonl')
    .option('--output-url <url>', 'a folder in a bucket that its results are written to, s3://bucket/path/')
    .option('--webhook <url>', 'where the event of its end is sent; its secret is printed once')
    .option('--idempotency-key <text>', 'a repeated call with the same key creates no second batch')
  examples(
    create,
    'offpeak batches create file_01k0… --entity user:42',
    'offpeak batches create file_01k0… --not-before 20:00',
    'offpeak batches create --input-url s3://data/in.jsonl --output-url s3://data/out/',
  )

  addResource(shell, batches, {
    description: 'show batches, newest first unless --sort says otherwise',
    kind: 'batches',
    one: ['a batch', 'batch_…'],
    shape: BatchObject,
    show: (shell, batch, _id, client) => showBatch(shell, batch, client),
    filters: {
      kind: ['--kind <kind>', 'batches, requests (those that gather single requests) or all'],
      status: ['--status <status>', `only one of ${BATCH_STATUSES.join(', ')}`],
      sort: ['--sort <column>', `by one of ${BATCH_SORTS.join(', ')}; the highest first`],
      order: ['--order <order>', 'desc, or asc: the lowest first'],
      search: ['--search <words>', 'only those with all these words in ID, name, metadata or models'],
    },
    columns: {
      ID: ({ id }) => id,
      NAME: ({ name }) => name,
      STATUS: ({ status }) => status,
      DONE: ({ request_counts: { total, completed, failed }, not_run }) =>
        `${percent(completed + failed - not_run, total)}%`,
      LINES: ({ request_counts: counts }) => humanCount(counts.total),
      FAILED: ({ request_counts: counts, not_run }) => humanCount(counts.failed - not_run),
      'NOT RUN': ({ not_run }) => humanCount(not_run),
      COST: ({ cost_usd }) => humanUsd(cost_usd),
      CREATED: ({ created }) => humanTime(created),
      EXPIRES: ({ expires_at }) => humanTime(expires_at),
    },
  })

  addList(shell, batches, 'find', {
    description: 'find lines of all batches by their custom_id, the newest batch first',
    argument: 'the custom_id; with a * at its end, a part of it',
    shape: FoundLine,
    path: () => '/v1/lines',
    query: (text) => (text.endsWith('*') ? { search: text.slice(0, -1) } : { custom_id: text }),
    columns: {
      BATCH: ({ batch_id }) => batch_id,
      LINE: ({ line }) => String(line),
      CUSTOM_ID: ({ custom_id }) => custom_id,
      STATUS: ({ status }) => status,
      COST: ({ cost_usd }) => humanUsd(cost_usd),
    },
  })

  jsonCommand(batches, 'wait', 'follow a batch until it is finished')
    .argument('<id>', 'batch_…')
    .action((id: string, flags: JsonFlags) => waitForBatch(shell, id, flags))

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

  const exported = addCall(shell, batches, 'export', {
    description: 'have the results of a batch written to a bucket, also after that has failed',
    argument: 'batch_…',
    call:
      (id, { outputUrl: output_url }: JsonFlags & { outputUrl?: string }) =>
      (client) =>
        client.post(BatchObject, `${pathOf('batches', id)}/export`, { output_url }),
  })
  exported.option('--output-url <url>', 'a folder, s3://bucket/path/ (default: that of the batch)')
  examples(exported, 'offpeak batches export batch_01k0… --output-url s3://data/out/')

  examples(
    jsonCommand(
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
  if ((file_id === '') === (flags.inputUrl === undefined))
    throw new Failure('name one input: the ID of a file, or --input-url with a file in a bucket')
  return {
    input_file_id: file_id || undefined,
    input_url: flags.inputUrl,
    output_url: flags.outputUrl,
    ...termsOf(flags),
    metadata: Object.keys(metadata).length === 0 ? undefined : metadata,
    webhook: flags.webhook === undefined ? undefined : { url: flags.webhook },
  }
}

/** The endpoint of the first line, where the key may read it; the call reports errors of the file. */
async function endpointOf(client: ApiClient, file_id: string): Promise<string> {
  try {
    return (await asksOf(contentOf(client, file_id || null), 1)).endpoint
  } catch (error) {
    if (!(error instanceof ApiError)) throw error
    return DEFAULT_ENDPOINT
  }
}

/** Prints only the ID to standard output, for scripts. */
function showCreated(shell: Shell, batch: Created): void {
  showId(shell, batch)
  const { id, secret } = batch.webhook ?? {}
  if (secret === undefined) return
  writeLine(shell.terminal.stderr, `The secret of its webhook ${id}, which is shown only once: ${secret}`)
}

async function waitForBatch(shell: Shell, id: string, flags: JsonFlags): Promise<void> {
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
  await withApi(shell, flags, ({ client, watch, answer }) => {
    answer(id)
    return writeData(shell.terminal.stdout, resultLines(client, id, { part: 'all', follow: true }, watch))
  })
}

async function fetchResults(shell: Shell, id: string, flags: ResultFlags): Promise<void> {
  const { stdout, stderr } = shell.terminal
  await withApi(shell, flags, async ({ client, watch }) => {
    const batch = await client.get(BatchObject, pathOf('batches', id))
    const { status } = batch
    const output = flags.output ?? `${id}.out.jsonl`
    const errors = flags.errors ?? `${id}.errors.jsonl`
    await checkOutput(output, { 'the failed lines': errors }, 'jsonl')
    await downloadResults(client, batch, { output, errors }, watch)
    if (flags.json) return printJson(stdout, { id, status, output, errors })
    if (!isTerminal(status))
      writeLine(stderr, `${id} is ${status}; the files hold the lines that are finished so far.`)
    writeLine(stderr, `answers: ${output}`)
    writeLine(stderr, `errors:  ${errors}${batch.request_counts.failed === 0 ? ' (empty)' : ''}`)
  })
}

export function addRequests(program: Command, shell: Shell): void {
  const requests = program
    .command('requests')
    .description('look up audit records; list and cancel single requests')
  addList(shell, requests, 'list', {
    description: 'show requests that came one at a time, the newest batch first',
    shape: FoundLine,
    path: () => '/v1/lines',
    query: () => ({ kind: 'requests' }),
    filters: {
      status: ['--status <status>', 'only one of completed, failed, pending'],
      entity: ['--entity <entity>', 'only those of this entity'],
      conversation: ['--conversation <id>', 'only those of this conversation'],
    },
    columns: {
      ID: ({ id }) => id,
      STATUS: ({ status }) => status,
      MODEL: ({ model }) => model ?? '-',
      ENTITY: ({ entity }) => entity ?? '-',
      CONVERSATION: ({ conversation }) => conversation ?? '-',
      COST: ({ cost_usd }) => humanUsd(cost_usd),
      ERROR: ({ error }) => error?.code ?? '-',
    },
  })
  addCall(shell, requests, 'cancel', {
    description: 'cancel one line of a batch that has not been sent',
    argument: 'req_…',
    call: (id) => (client) =>
      client.post(Type.Pick(LineRecord, ['status']), `${pathOf('requests', id)}/cancel`),
    show: ({ terminal }, record, id) => writeLine(terminal.stdout, `${id} is ${record.status}`),
  })
  const get = addCall(shell, requests, 'get', {
    description: 'show the audit record of a line or an HTTP call',
    argument: 'req_…, from a result line or the header X-Service-Request-Id',
    call: (id) => (client) => client.get(AnyObject, pathOf('requests', id)),
    show: ({ terminal }, record) => writeLines(terminal.stdout, JSON.stringify(record, null, 2)),
  })
  examples(get, 'offpeak requests get req_01k0…')
}

interface RetryFlags extends JsonFlags {
  code?: string[]
  window?: string
  outputUrl?: string
  wait?: boolean
  merge?: string
}

export function addRetry(program: Command, shell: Shell): void {
  examples(
    jsonCommand(program, 'retry', 'run the failed lines of a batch again in a new batch')
      .argument('<batch_id>', 'a finished batch')
      .option('--code <list>', 'only lines with these error codes, separated by commas', commaList)
      .option('--window <duration>', 'completion window (default: that of the batch)')
      .option('--output-url <url>', 'a folder, s3://bucket/path/, or none (default: that of the batch)')
      .option('--wait', 'follow the new batch until it is finished')
      .option('--merge <file>', 'wait, then write the answers of both batches there')
      .action((id: string, flags: RetryFlags) => retryBatch(shell, id, flags)),
    'offpeak retry batch_01k0…',
    'offpeak retry batch_01k0… --code batch_expired,upstream_timeout --merge answers.jsonl',
  )
}

async function retryBatch(shell: Shell, id: string, flags: RetryFlags): Promise<void> {
  const { stdout, stderr } = shell.terminal
  await withApi(shell, flags, async (connection) => {
    const { client, watch, embedded, answer } = connection
    if (flags.merge !== undefined) await checkOutput(flags.merge, {}, 'jsonl')
    const path = pathOf('batches', id)
    const output_url = flags.outputUrl === 'none' ? null : flags.outputUrl
    const order = { codes: flags.code, completion_window: flags.window, output_url }
    await createOnce(shell, connection, [path, order], async (key) => {
      const made = await client.post(Created, `${path}/retry`, order, { 'idempotency-key': key })
      // The ID is printed before anything else can fail.
      if (!flags.json) showId(shell, made)
      const { lines, permanent } = await countFailed(client, id, flags.code)
      const again = permanent === 0 ? '' : `; ${permanent} of them will fail again unless the input is fixed`
      watch.view.message(`${made.id}: ${counted(lines, 'failed line')} of ${id}${again}`)
      // An embedded service sends no lines after the command.
      const follows = flags.wait || embedded || flags.merge !== undefined
      if (!follows) {
        if (flags.json) printJson(stdout, made)
        return
      }
      answer(made.id)
      const done = await watchBatch(client, made.id, watch)
      watch.view.stop()
      if (flags.merge !== undefined) {
        const old = await client.get(BatchObject, path)
        await writeWhole(flags.merge, answersOf(client, [old, done]))
        writeLine(stderr, `answers of both batches: ${flags.merge}`)
      }
      shell.exit(done.status === 'completed' && done.request_counts.failed === 0 ? 0 : EXIT_LINES_FAILED)
      if (flags.json) printJson(stdout, done)
    })
  })
}

/** Counts failed lines with one of these codes (any, if undefined), and those among them that will fail again. */
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
    permanent: sum(chosen.filter((group) => !mayRetry(group))),
  }
}

/** Streams the answers of several batches, none of which have a line in common. */
async function* answersOf(client: ApiClient, batches: readonly BatchObject[]): AsyncGenerator<Buffer> {
  for (const { output_file_id } of batches) yield* contentOf(client, output_file_id)
}
