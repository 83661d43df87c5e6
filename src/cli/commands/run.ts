// run: runs a JSONL file of requests and writes a file of answers and a file of failed lines.
import { access } from 'node:fs/promises'
import { resolve } from 'node:path'
import type { Command } from 'commander'
import { type Connection, connectOrEmbed } from '../client/connect.ts'
import type { ConfigFlags } from '../launch.ts'
import type { Shell } from '../shell.ts'
import { EXIT_FAILED, EXIT_LINES_FAILED, Interrupted } from '../terminal/failure.ts'
import { counted, humanDuration, humanUsd } from '../terminal/format.ts'
import { examples, pairs, withConfig, withJson } from '../terminal/option-values.ts'
import { progressView } from '../terminal/progress-view.ts'
import { printJson } from '../terminal/table.ts'
import { type Terminal, writeLine } from '../terminal/terminal.ts'
import { estimateRun, printEstimate } from './estimate.ts'
import { explained } from './failed-lines.ts'
import { type RunOrder, type RunReport, runBatch } from './run-batch.ts'

const JSONL = /\.(jsonl|ndjson)$/i

interface RunFlags extends ConfigFlags {
  output?: string
  errors?: string
  window: string
  metadata?: Record<string, string>
  entity?: string
  upstream?: string
  estimate?: boolean
  json?: boolean
}

export function addRun(program: Command, shell: Shell): void {
  const run = program
    .command('run')
    .description('run a JSONL file of requests from start to finish')
    .argument('<input>', 'JSONL file, one request per line')
    .option('-o, --output <file>', 'answers (default: INPUT.out.jsonl)')
    .option('--errors <file>', 'failed lines (default: INPUT.errors.jsonl, with -o OUT.errors.jsonl)')
    .option('--window <duration>', 'completion window', '24h')
    .option('--metadata <key=value>', 'a pair of metadata for the batch; may be repeated', pairs)
    .option('--entity <type:id>', 'entity to attribute usage to; short for --metadata entity=…')
    .option('--upstream <url>', 'use the models of this OpenAI-compatible server')
    .option('--estimate', 'only show the projected cost and the limits that apply; run nothing')
  examples(
    withConfig(withJson(run)).action((input: string, flags: RunFlags) => runInput(shell, input, flags)),
    'offpeak run examples/gsm8k.jsonl -o answers.jsonl',
    'offpeak run input.jsonl --estimate',
    'offpeak run input.jsonl --upstream http://127.0.0.1:8000/v1',
    'OFFPEAK_BASE_URL=https://batch.example OFFPEAK_API_KEY=… offpeak run input.jsonl',
  ).addHelpText(
    'after',
    `
Without OFFPEAK_BASE_URL and OFFPEAK_API_KEY, the command starts a service and stops it at its end.
To resume an interrupted run with the same batch, run the same command again.
Exit code: 0 every line was answered, 3 some lines failed, 1 no line was run, 130 interrupted.
With --estimate: 0 the batch would be accepted, 1 a limit would refuse it.`,
  )
}

async function runInput(shell: Shell, input: string, flags: RunFlags): Promise<void> {
  await access(input)
  const signal = shell.interruption()
  const view = progressView(shell.terminal.stderr, shell.clock)
  const connection = await connectOrEmbed(shell, flags, signal)
  try {
    const order = orderFor(input, flags, connection.target)
    const watch = { view, pace: connection.pace, clock: shell.clock, signal }
    if (flags.estimate) {
      const estimate = await estimateRun(connection, order, watch)
      view.stop()
      if (flags.json) printJson(shell.terminal.stdout, estimate)
      else printEstimate(shell.terminal.stdout, estimate)
      return shell.exit(estimate.accepted ? 0 : EXIT_FAILED)
    }
    const report = await runBatch(connection.client, order, watch)
    view.stop()
    if (flags.json) printJson(shell.terminal.stdout, summary(report, order))
    else printReport(shell.terminal, report, order)
    shell.exit(exitFor(report))
  } catch (error) {
    if (!(error instanceof Interrupted)) throw error
    if (connection.embedded) view.message('Stopping the service. Press Ctrl-C again to exit at once.')
    throw new Interrupted(interruptedMessage(connection))
  } finally {
    view.stop()
    await connection.close()
  }
}

/** Paths default to files beside the input; with -o, failed lines go beside the answers. */
export function orderFor(input: string, flags: RunFlags, target: string): RunOrder {
  const stem = input.replace(JSONL, '')
  const output = flags.output ?? `${stem}.out.jsonl`
  return {
    input,
    output,
    errors: flags.errors ?? `${flags.output === undefined ? stem : output.replace(JSONL, '')}.errors.jsonl`,
    target,
    window: flags.window,
    metadata: { ...flags.metadata, ...(flags.entity === undefined ? {} : { entity: flags.entity }) },
  }
}

/** The exit code of a finished run. */
export function exitFor({ batch }: RunReport): number {
  if (batch.status === 'failed') return EXIT_FAILED
  return batch.status === 'completed' && batch.request_counts.failed === 0 ? 0 : EXIT_LINES_FAILED
}

function interruptedMessage(connection: Connection): string {
  return connection.embedded
    ? 'interrupted; finished lines are kept. Run the same command again to resume the batch.'
    : `interrupted; the batch continues at ${connection.target}. Run the same command again to follow it.`
}

function summary(report: RunReport, order: RunOrder): object {
  const { batch, durationMs, failures } = report
  return {
    batch_id: batch.id,
    status: batch.status,
    request_counts: batch.request_counts,
    cost_usd: batch.cost_usd,
    duration_ms: durationMs,
    output: resolve(order.output),
    errors: resolve(order.errors),
    failures: failures.map(({ code, count }) => ({ code, count })),
  }
}

/** Prints the report to stderr; stdout is for data. */
export function printReport({ stderr }: Terminal, report: RunReport, order: RunOrder): void {
  const { batch, durationMs, failures } = report
  const { completed, failed } = batch.request_counts
  writeLine(
    stderr,
    `${batch.id} ${batch.status}: ${counted(completed, 'line')} answered, ${failed} failed, ` +
      `${humanUsd(batch.cost_usd)}, ${humanDuration(durationMs)}`,
  )
  for (const line of explained(failures)) writeLine(stderr, line)
  writeLine(stderr, `answers: ${order.output}`)
  writeLine(stderr, `errors:  ${order.errors}${failed === 0 ? ' (empty)' : ''}`)
}
