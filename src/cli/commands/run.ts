// run: runs a JSONL file of requests and writes a file of answers and a file of failed lines, or runs a table and writes
// it again with the answers in it.
import { stat } from 'node:fs/promises'
import { basename, join, resolve } from 'node:path'
import type { Command } from 'commander'
import { makeFolder } from '../../blobs/folders.ts'
import { isTerminal } from '../../domain/batch.ts'
import { METADATA_PAIRS_MAX } from '../../jsonl/line-scan.ts'
import { compressionOf, formatOf, withoutEnding } from '../../tables/table.ts'
import { tableBytes } from '../../tables/table-bytes.ts'
import { BatchEstimate, BatchObject } from '../../wire/batch.ts'
import { DeletedFile } from '../../wire/file.ts'
import { checkOrder, HOW_TO_NAME_ONE, modelNames, windowFor } from '../client/check-order.ts'
import { ApiError } from '../client/client.ts'
import { type Connection, cancelBatch, connectOrEmbed } from '../client/connect.ts'
import { checkInput, ModelOverride, uploadInput } from '../client/upload.ts'
import { watchFile } from '../client/watch-batch.ts'
import { type EngineFlags, type RunEngine, runEngine, withEngineFlags } from '../engine-flags.ts'
import { checkOutput, writeWhole } from '../output-file.ts'
import type { JsonFlags, Shell, UpstreamFlags } from '../shell.ts'
import { type JoinedRows, targetAt } from '../tables/join-answers.ts'
import { fileSource } from '../tables/open-table.ts'
import { EXIT_FAILED, EXIT_LINES_FAILED, EXIT_NOT_SENT, Failure, Interrupted } from '../terminal/failure.ts'
import {
  type BatchFlags,
  examples,
  jsonCommand,
  metadataOf,
  ownTerms,
  termsOf,
  withBatchTerms,
  withUpstream,
} from '../terminal/option-values.ts'
import { type ProgressView, percent, progressView } from '../terminal/progress-view.ts'
import {
  confirmed,
  counted,
  humanCount,
  humanDuration,
  humanTime,
  humanUsd,
  type Output,
  paintFor,
  printJson,
  printTable,
  type Terminal,
  writeLine,
} from '../terminal/terminal.ts'
import { appliesTo, capText } from './limits.ts'
import {
  batchOf,
  explained,
  lockRun,
  outputOf,
  type RunOrder,
  type RunReport,
  type RunState,
  readRunState,
  removeRunState,
  runBatch,
  runStatePath,
} from './run-batch.ts'
import {
  hasPrompt,
  isTable,
  type TableFlags,
  type TableTerms,
  tableOnly,
  tableTerms,
  withTable,
} from './table-question.ts'
import {
  lastTableRun,
  type RetryJob,
  removeTableFolder,
  retryStatePath,
  startRetry,
  startTableJob,
  type TableJob,
  type TableRun,
  tableFolder,
} from './table-run.ts'

interface RunFlags extends JsonFlags, UpstreamFlags, BatchFlags, TableFlags, EngineFlags {
  output?: string
  errors?: string
  force?: boolean
  estimate?: boolean
  retryFailed?: boolean
  again?: boolean
  discard?: boolean
}

export function addRun(program: Command, shell: Shell): void {
  const run = jsonCommand(program, 'run', 'run a JSONL file of requests, or a table, from start to finish')
    .argument('<input>', 'JSONL file, one request per line; or a table: CSV, TSV, JSONL or Parquet')
    .option('-o, --output <file>', 'answers (default: INPUT.out.jsonl; of a table: INPUT.out.csv and so on)')
    .option('--errors <file>', 'failed lines (default: INPUT.errors.jsonl, with -o OUT.errors.jsonl)')
    .option('--force', 'replace such files that no run has written, or that were changed since')
  withBatchTerms(run)
    .option('--retry-failed', 'table: ask again about the rows to which the last run has no answer')
    .option('--again', 'run it again, and pay for it again, though the same run has finished before')
    .option('--discard', 'cancel what an interrupted run with this output has left; run nothing')
    .option('--estimate', 'only show the projected cost and the limits that apply; run nothing')
  withTable(
    withEngineFlags(withUpstream(run)),
    'the model that answers, whichever a file of requests names; or a GGUF file, or with --engine a name, of the model to start',
  ).option('--prefix <text>', 'table: put this before the names of the new columns')
  examples(
    run.action((input: string, flags: RunFlags) => runInput(shell, input, flags)),
    'offpeak run examples/gsm8k.jsonl -o answers.jsonl',
    `offpeak run reviews.csv --model sim-1 --prompt 'Classify: {{text}}' --schema schema.json -o out.csv`,
    'offpeak run reviews.csv -o out.csv --retry-failed',
    'offpeak run input.jsonl --model path/to/model.gguf     # starts llama.cpp for the run',
    'offpeak run input.jsonl --engine vllm --model Qwen/Qwen3-8B',
    'offpeak run input.jsonl --estimate',
    'offpeak run input.jsonl --upstream http://127.0.0.1:8000/v1 --model Qwen/Qwen3-8B',
    'offpeak run input.jsonl --upstream https://provider.example/v1 --upstream-key-env PROVIDER_KEY',
    'OFFPEAK_BASE_URL=https://batch.example OFFPEAK_API_KEY=… offpeak run input.jsonl',
  ).addHelpText(
    'after',
    `
Without OFFPEAK_BASE_URL and OFFPEAK_API_KEY, the command starts a service and stops it at its end.
To resume an interrupted run with the same batch, run the same command again.
Exit code: 0 every line was answered, 3 some lines failed, 1 no line was run, 130 interrupted,
4 nothing was sent: the same run has finished before (--again), or is running; the output is the file of
another program (--force); with --retry-failed, a retry is unfinished, or the table has changed.
With --estimate: 0 the batch would be accepted, 1 a limit would refuse it, or no line could run.`,
  )
}

async function runInput(shell: Shell, input: string, given: RunFlags): Promise<void> {
  await checkInput(input)
  if (given.engine !== undefined && given.upstream !== undefined)
    throw new Failure('--engine starts a server, and --upstream names one; leave out one of the two')
  const signal = shell.interruption()
  const view = progressView(shell.terminal.stderr, shell.clock)
  if (given.discard) return await discardRun(shell, input, given, view, signal)
  if (given.retryFailed && given.again)
    throw new Failure(
      '--retry-failed asks about some rows, and --again about every one; leave out one of the two',
    )
  const table = given.retryFailed || (await isTable(input, given))
  if (table || !given.estimate) await checkOutputs(input, given, table)
  // An estimate of an unchanged file of requests writes nothing.
  using _lock =
    given.estimate && !table && given.model === undefined && compressionOf(input) === null
      ? null
      : await lockRun(outputOf(input, given, table))
  await runLocked(shell, input, given, table, view, signal)
}

async function checkOutputs(input: string, flags: RunFlags, table: boolean): Promise<void> {
  const output = outputOf(input, flags, table)
  const files: [path: string, kept: Record<string, string>][] = [[output, { 'the input': input }]]
  if (!table) files.push([errorsOf(input, flags), { 'the input': input, 'the answers': output }])
  for (const [path, kept] of files) {
    await checkOutput(path, kept, table ? undefined : 'jsonl')
    if (!flags.force) await refuseForeign(path, output)
  }
}

/** Throws for a file that this program has not written, or that was edited since: it may hold hours of work. */
async function refuseForeign(path: string, output: string): Promise<void> {
  const file = await stat(path).catch(() => null)
  if (file === null || file.size === 0) return
  const state = await readRunState(runStatePath(output))
  if (state && !state.finished) return
  const wroteMs = state && (await stat(runStatePath(output))).mtimeMs
  if (wroteMs !== undefined && file.mtimeMs <= wroteMs + CLOSE_MS) return
  throw new Failure(
    `${path} is there already, and ${state ? 'was changed since a run wrote it' : 'no run wrote it'}; nothing was sent. ` +
      'Name another output with -o, or replace it with --force',
    EXIT_NOT_SENT,
  )
}

/** The difference in ms between the times of output and state in a copy, where their order may be reversed. */
const CLOSE_MS = 5000

async function runLocked(
  shell: Shell,
  input: string,
  given: RunFlags,
  table: boolean,
  view: ProgressView,
  signal: AbortSignal,
): Promise<void> {
  const engine = await runEngine(given, table ? null : input, shell.env)
  const flags = engine === null ? given : flagsForEngine(given, engine)
  const output = outputOf(input, flags, table)
  const last = given.retryFailed ? await finishedRun(output) : undefined
  let job = last ? undefined : await tableJob(input, flags, table, view, signal)
  const override = !table && flags.model !== undefined ? new ModelOverride(flags.model) : undefined
  let requests = input
  try {
    if (!table) requests = await requestsOf(input, override, tableFolder(output))
    const connection = await connectOrEmbed(shell, flags, { view, signal }, engine)
    try {
      if (last) {
        const target = targetAt(output, last.table.terms)
        const retry = await startRetry(connection, { input, target, last, flags })
        job = retry
        view.stop()
        if (retry.lines === 0) return await reportNothing(shell, retry, flags)
        const rest = retry.rows - retry.unanswered
        view.message(
          `Asking again about ${counted(retry.lines, 'row')} of ${retry.rows}; ${counted(rest, 'row stays as it is', 'rows stay as they are')}.`,
        )
      }
      const server = [given.upstream, given.engine, engine && given.model].filter(Boolean).join(' ')
      const asked = last ? retryFlags(last, flags) : flags
      const before = await readRunState(runStatePath(output))
      const window = await windowFor(connection.client, asked.window, before?.window)
      const order = {
        ...orderFor(input, { ...asked, window }, connection.target, job),
        ...(requests !== input && { input: requests }),
        ...(server !== '' && { server }),
      }
      const running = runConnected(shell, connection, order, { job, override }, flags)
      await Promise.race([running, connection.failed])
    } catch (error) {
      if (!(error instanceof Interrupted)) throw error
      if (connection.embedded) view.message('Stopping the service. Press Ctrl-C again to exit at once.')
      throw new Interrupted(interruptedMessage(connection))
    } finally {
      view.stop()
      await connection.close()
    }
  } finally {
    view.stop()
    await job?.clear()
    if (requests !== input) await removeTableFolder(output)
  }
}

/**
 * The file of requests to upload: a copy in the folder if the model is replaced or the input is compressed. The copy is
 * deleted at the end of the run; a resumed run makes the same bytes again.
 */
async function requestsOf(
  input: string,
  override: ModelOverride | undefined,
  folder: string,
): Promise<string> {
  if (!override && compressionOf(input) === null) return input
  makeFolder(folder, 0o777)
  const path = join(folder, basename(input).replace(/\.(gz|zst)$/i, ''))
  const bytes = tableBytes(await fileSource(input))
  await writeWhole(path, override ? override.lines(bytes) : bytes)
  return path
}

/** The flags of a run with an engine: a table's requests name its model, a file of requests names models itself. */
function flagsForEngine({ model: _, ...flags }: RunFlags, { model }: RunEngine): RunFlags {
  return hasPrompt(flags) ? { ...flags, model } : flags
}

/** Makes the requests of a table, and returns their job; undefined for a file of requests. */
async function tableJob(
  input: string,
  flags: RunFlags,
  table: boolean,
  view: ProgressView,
  signal: AbortSignal,
): Promise<TableJob | undefined> {
  if (!table) {
    const [wrong] = tableOnly(flags)
    if (wrong !== undefined) throw new Failure(`${wrong} is for tables; ${input} is a file of requests`)
    return undefined
  }
  if (flags.errors !== undefined)
    throw new Failure('--errors is for files of requests; the errors of a table are in its column "error"')
  const target = targetAt(outputOf(input, flags, table), flags)
  const terms = await tableTerms(flags)
  const job = await startTableJob({ input, target, terms }, view, signal)
  const single = job.columns.find((name) => /^\w+$/.test(name) && hasSingle(terms, name))
  if (single !== undefined)
    view.message(`{${single}} in one pair of braces is sent as it is; the column is {{${single}}}.`)
  if (job.orderAdvice) {
    const { columns, shared, as_written } = job.orderAdvice
    view.message(
      `With its columns in the order ${columns}, ${percent(shared, 1)} % of the prompts can come from a server's prefix cache; as written ${percent(as_written, 1)} %.`,
    )
  }
  return job
}

function hasSingle({ prompt, system = '' }: TableTerms, column: string): boolean {
  return new RegExp(`(?<!\\{)\\{ *${column} *\\}(?!\\})`).test(`${prompt} ${system}`)
}

async function finishedRun(output: string): Promise<TableRun> {
  const last = await lastTableRun(output)
  if (last.state.finished) return last
  throw new Failure(
    `the last run with the output ${output} was interrupted (${last.batch_id}); ` +
      'to resume it, run it again without --retry-failed',
  )
}

/** The flags of a retry, which is billed like the run. `retry_of` is needed to find its answers again. */
function retryFlags({ state, batch_id }: TableRun, flags: RunFlags): RunFlags {
  const { window = state.window } = flags
  const { start_after: _, ...earlier } = ownTerms(state)
  const metadata = { ...state.metadata, ...metadataOf(flags), retry_of: batch_id }
  if (Object.keys(metadata).length > METADATA_PAIRS_MAX)
    throw new Failure(
      `the metadata of the run has no room for retry_of: it may have ${METADATA_PAIRS_MAX} pairs. Nothing was sent. ` +
        `To ask again for its failed lines, in a batch that does not name it: offpeak retry ${batch_id}`,
      EXIT_NOT_SENT,
    )
  return { ...flags, window, earlier, metadata }
}

/** Reports that no row can be retried. */
async function reportNothing(
  { terminal: { stdout, stderr }, exit }: Shell,
  { rows, unanswered, isBehind, target, join }: RetryJob,
  flags: RunFlags,
): Promise<void> {
  if (!flags.estimate && (isBehind || unanswered > 0)) await join()
  exit(unanswered === 0 ? 0 : EXIT_LINES_FAILED)
  const counts = { rows, rows_failed: unanswered }
  if (flags.json) return printJson(stdout, { batch_id: null, output: resolve(target.path), ...counts })
  const why =
    unanswered === 0
      ? 'every row has its answer'
      : `no request can be made of the ${counted(unanswered, 'row')} without an answer: see the column "error"`
  writeLine(stderr, `Nothing was sent: ${why}.`)
  writeLine(stderr, `table: ${target.path} (${counted(rows, 'row')})`)
}

/** Cancels the batch of an interrupted run, or deletes its upload, and removes the state. */
async function discardRun(
  shell: Shell,
  input: string,
  flags: RunFlags,
  view: ProgressView,
  signal: AbortSignal,
): Promise<void> {
  const isNamedTable = ![undefined, 'jsonl'].includes(formatOf(input))
  const output = outputOf(input, flags, isNamedTable || hasPrompt(flags))
  using _lock = await lockRun(output)
  const retry = await readRunState(retryStatePath(output))
  const path = retry && !retry.finished ? retryStatePath(output) : runStatePath(output)
  const state = await readRunState(path)
  if (state === undefined || state.finished)
    return view.message(`No interrupted run with the output ${output} has left anything.`)
  const connection = await connectOrEmbed(shell, { ...flags, upstream: undefined }, { view, signal })
  try {
    if (state.target !== connection.target)
      throw new Failure(
        `the interrupted run used ${state.target}, and this command uses ${connection.target}`,
      )
    view.message(await endRun(connection, state))
  } finally {
    await connection.close()
  }
  await removeRunState(path)
  await removeTableFolder(output)
}

/** Ends an interrupted run; returns a sentence for the user about the result. */
async function endRun(connection: Connection, { batch_id, file_id }: RunState): Promise<string> {
  try {
    if (batch_id === null) {
      // A batch that exists nevertheless sends nothing more without its input.
      await connection.client.delete(DeletedFile, `/v1/files/${file_id}`)
      return 'The upload of the interrupted run is deleted. Nothing was run.'
    }
    const { status } = await connection.client.get(BatchObject, `/v1/batches/${batch_id}`)
    if (!isTerminal(status))
      await cancelBatch(connection, batch_id).catch((error: unknown) => {
        const hasEnded = error instanceof ApiError && error.code === 'batch_not_cancellable'
        if (!hasEnded) throw error
      })
    const batch = await connection.client.get(BatchObject, `/v1/batches/${batch_id}`)
    const { completed, total } = batch.request_counts
    const kept =
      completed === 0 ? '' : ` To keep them: offpeak batches results ${batch_id}${connection.options}`
    return `${batch_id} ${batch.status}: ${completed} of ${counted(total, 'line')} answered, ${humanUsd(batch.cost_usd)}.${kept}`
  } catch (error) {
    if (!(error instanceof ApiError) || error.status !== 404) throw error
    return 'The upload or batch of the interrupted run no longer exists.'
  }
}

async function runConnected(
  { terminal, exit }: Shell,
  connection: Connection,
  order: RunOrder,
  { job, override }: { job: TableJob | undefined; override: ModelOverride | undefined },
  flags: RunFlags,
): Promise<void> {
  const { view, signal } = connection.watch
  if (flags.estimate) {
    const estimate = await estimateRun(connection, order)
    view.stop()
    if (flags.json) printJson(terminal.stdout, estimate)
    else printEstimate(terminal.stdout, estimate, await modelNames(connection.client))
    const { unknown_models: unknown = [] } = estimate
    const canRun = estimate.groups.some(({ model }) => model === null || !unknown.includes(model))
    return exit(estimate.accepted && canRun ? 0 : EXIT_FAILED)
  }
  let joined: JoinedRows | undefined
  const finish = async (): Promise<void> => {
    joined = await job?.join()
  }
  const report = await runBatch(connection, order, finish, async ({ batch_id, finished }) => {
    if (flags.again) return
    const done = `this run has finished before (${batch_id}, ${humanTime((finished?.at ?? 0) / 1000)})`
    if (await confirmed(terminal, `${done}. Run it again, at its cost?`, signal)) return
    if (signal.aborted) throw new Interrupted()
    throw new Failure(
      `${done}; nothing was sent. --again runs it again, at its cost, and replaces its files. ` +
        (job ? '--retry-failed asks again about rows without an answer. ' : '') +
        `To write its results anew: offpeak ${job ? 'results TABLE --merge' : `batches results ${batch_id}`}${connection.options}`,
      EXIT_NOT_SENT,
    )
  })
  view.stop()
  const table = job && joined && { path: job.target.path, ...joined }
  if (flags.json) printJson(terminal.stdout, summary(report, order, table))
  else {
    printReport(terminal, report, order, override?.text ?? null, table)
    if (report.failures.some(({ code }) => code === 'model_not_found'))
      writeLine(terminal.stderr, `models here: ${await modelNames(connection.client)}${HOW_TO_NAME_ONE}`)
  }
  exit(exitFor(report, table))
}

interface WrittenTable extends JoinedRows {
  path: string
}

/** The order of a run. Paths default to files beside the input; with -o, failed lines go beside the answers. */
export function orderFor(
  input: string,
  flags: Pick<RunFlags, 'output' | 'errors' | 'model' | keyof BatchFlags> & { window: string },
  target: string,
  job?: TableJob,
): RunOrder {
  const output = outputOf(input, flags, false)
  return {
    ...{ input, output, errors: errorsOf(input, flags) },
    state: runStatePath(output),
    target,
    window: flags.window,
    ...termsOf(flags),
    model: flags.model,
    ...job?.order,
    metadata: metadataOf(flags),
  }
}

function errorsOf(input: string, { output, errors }: Pick<RunFlags, 'output' | 'errors'>): string {
  return errors ?? `${withoutEnding(output ?? input)}.errors.jsonl`
}

function exitFor({ batch }: RunReport, table?: WrittenTable): number {
  if (batch.status === 'failed') return EXIT_FAILED
  const failed = table?.failed ?? batch.request_counts.failed
  return batch.status === 'completed' && failed === 0 ? 0 : EXIT_LINES_FAILED
}

function interruptedMessage(connection: Connection): string {
  return connection.embedded
    ? 'interrupted; finished lines are kept. Run the same command again to resume the batch, or with --discard to end it.'
    : `interrupted; the batch continues at ${connection.target}. Run the same command again to follow it, or with --discard to end it.`
}

function summary(report: RunReport, order: RunOrder, table: WrittenTable | undefined): object {
  const { batch, durationMs, failures } = report
  return {
    batch_id: batch.id,
    status: batch.status,
    model: order.model,
    request_counts: batch.request_counts,
    not_run: batch.not_run,
    cost_usd: batch.cost_usd,
    dedupe_counts: batch.dedupe_counts,
    duration_ms: durationMs,
    ...(table === undefined
      ? { output: resolve(order.output), errors: resolve(order.errors) }
      : {
          output: resolve(table.path),
          rows: table.rows,
          rows_failed: table.failed,
          rows_empty: table.empty,
        }),
    failures: failures.map(({ code, count }) => ({ code, count })),
  }
}

/** Prints the report to stderr; stdout is for data. */
function printReport(
  { stderr }: Terminal,
  report: RunReport,
  order: RunOrder,
  model: string | null,
  table?: WrittenTable,
): void {
  const { batch, durationMs, failures } = report
  const { request_counts: counts, not_run } = batch
  const { completed, failed } = counts
  writeLine(
    stderr,
    `${batch.id} ${batch.status}: ${counted(completed, 'line')} answered, ${failed - not_run} failed, ` +
      `${not_run === 0 ? '' : `${not_run} not run, `}` +
      `${humanUsd(batch.cost_usd)}, ${humanDuration(durationMs)}`,
  )
  for (const line of explained(failures)) writeLine(stderr, line)
  const cache = cacheText(batch)
  if (cache !== null) writeLine(stderr, `cache:   ${cache}`)
  if (batch.dedupe_counts) writeLine(stderr, `dedupe:  ${sharedText(batch.dedupe_counts, completed)}`)
  if (model !== null) writeLine(stderr, `model:   ${model}`)
  if (table !== undefined) {
    const empty = table.empty === 0 ? '' : `, ${table.empty} empty and not asked about`
    const without = table.failed === 0 ? '' : `, ${table.failed} without an answer: see the column "error"`
    writeLine(stderr, `table: ${table.path} (${counted(table.rows, 'row')}${empty}${without})`)
    if (table.failed > 0)
      writeLine(stderr, 'To ask again about these rows: the same command with --retry-failed')
    return
  }
  writeLine(stderr, `answers: ${order.output}`)
  writeLine(stderr, `errors:  ${order.errors}${failed === 0 ? ' (empty)' : ''}`)
}

/** The prompt tokens that came from servers' caches; null where none did. */
function cacheText({ usage, cache_saved_usd }: BatchObject): string | null {
  const cached = usage?.input_tokens_details.cached_tokens ?? 0
  if (!usage || cached === 0) return null
  const saved = cache_saved_usd === undefined ? '' : `, ${humanUsd(cache_saved_usd)} saved`
  return `${humanCount(cached)} of ${counted(usage.input_tokens, 'input token')} came from caches of servers${saved}`
}

/** The effect of `--dedupe`, or the reason why it had none. */
function sharedText(
  { shared, saved_usd, unshared }: NonNullable<BatchObject['dedupe_counts']>,
  answered: number,
): string {
  const done = `${humanCount(shared)} of ${counted(answered, 'line')} shared an answer, ${humanUsd(saved_usd)} saved`
  if (unshared === 0) return shared === 0 ? 'no line asks what another one asks' : done
  const more = `${counted(unshared, 'line')} more could: their temperature is not 0 and they have no seed; --dedupe force shares these too`
  return `${done}; ${more}`
}

// run --estimate: shows the projected cost of a file and the limits that apply to it, without creating a batch.

/** Uploads the file, requests the estimate and deletes the file again. */
async function estimateRun({ client, watch }: Connection, order: RunOrder): Promise<BatchEstimate> {
  // An estimate reports unknown models beside the cost of the others.
  if (order.model !== undefined) await checkOrder(client, order, watch)
  const { file } = await uploadInput(client, order.input, watch.view)
  try {
    await watchFile(client, file.id, watch)
    const batch = await batchOf(file.id, order.input, order)
    return await client.post(BatchEstimate, '/v1/batches?dry_run=true', batch)
  } finally {
    // A file that remains after a lost connection costs nothing, and is deleted after its retention.
    await client.delete(DeletedFile, `/v1/files/${file.id}`).catch(() => {})
  }
}

/** Prints an estimate. `names`: the existing models. */
function printEstimate(output: Output, estimate: BatchEstimate, names: string): void {
  const { lines, input_tokens, output_tokens_max, cost_usd, groups, limits } = estimate
  const { unpriced_models, unknown_models = [], estimated_completion, prompt_cache } = estimate
  writeLine(
    output,
    `${counted(lines, 'line')}, about ${counted(input_tokens, 'input token')}, at most ${counted(output_tokens_max, 'output token')}: at most ${humanUsd(cost_usd)}.`,
  )
  if (prompt_cache !== undefined && prompt_cache.shared > 0)
    writeLine(
      output,
      `${percent(prompt_cache.shared, 1)} % of the prompts can come from a server's prefix cache; in the order of the file ${percent(prompt_cache.as_written, 1)} %.`,
    )
  if (estimated_completion != null)
    writeLine(output, `It would be done at about ${humanTime(estimated_completion)}.`)
  if (unpriced_models.length > 0)
    writeLine(output, `These models have no price and count as free: ${unpriced_models.join(', ')}.`)
  if (unknown_models.length > 0)
    writeLine(
      output,
      `There is no model ${unknown_models.join(', ')}: lines that name it fail. Models here: ${names}${HOW_TO_NAME_ONE}.`,
    )
  writeLine(output, '')
  printTable(output, groups, {
    LINES: ({ lines }) => humanCount(lines),
    INPUT: ({ input_tokens }) => humanCount(input_tokens),
    OUTPUT: ({ output_tokens_max }) => humanCount(output_tokens_max),
    COST: ({ priced, cost_usd }) => (priced ? humanUsd(cost_usd) : 'no price'),
    MODEL: ({ model }) => model ?? '-',
    ENTITY: ({ entity }) => entity ?? '-',
  })
  if (limits.length > 0) {
    writeLine(output, '')
    printTable(output, limits, {
      LIMIT: ({ limit }) => limit.id,
      FOR: ({ limit, entity }) => entity ?? appliesTo(limit),
      CAP: ({ limit }) => capText(limit),
      SPENT: ({ limit, spent }) => capText(limit, spent),
      PROJECTED: ({ limit, open }) => capText(limit, open),
      'THIS FILE': ({ limit, needed }) => capText(limit, needed),
      ACTION: ({ limit }) => limit.action,
      RESULT: ({ exceeds }) => (exceeds ? 'exceeded' : 'sufficient'),
    })
  }
  const refused = limits.find(({ limit, exceeds }) => exceeds && limit.action === 'block')
  if (estimate.accepted || !refused) return
  const until = humanTime(refused.resets_at)
  const text = `The batch would be refused: it would exceed ${refused.limit.id}, whose window ends at ${until}.`
  writeLine(output, paintFor(output)('red', text))
}
