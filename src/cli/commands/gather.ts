// gather: runs a program whose calls of a model become single requests. What is still open when the program has ended is
// cancelled; whatever was answered is found again by the same calls of a later run.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { constants } from 'node:os'
import { join } from 'node:path'
import type { Command } from 'commander'
import { sleep } from '../../domain/clock.ts'
import { ModelObject } from '../../wire/model.ts'
import { QuotasObject } from '../../wire/project.ts'
import { modelPath, windowFor } from '../client/check-order.ts'
import { AnyObject } from '../client/client.ts'
import { connectOrStart } from '../client/connect.ts'
import { stateFolder } from '../client/create-once.ts'
import { KnownRequests } from '../client/known-requests.ts'
import { SingleRequests } from '../client/single-requests.ts'
import { type Counts, Gateway, HOST } from '../gateway/gateway.ts'
import type { ConfigFlags, Shell, UpstreamFlags } from '../shell.ts'
import { aborted, Failure, hasCode } from '../terminal/failure.ts'
import {
  examples,
  metadataOf,
  pairsOf,
  WINDOW_HELP,
  wholeNumber,
  withConfig,
  withUpstream,
} from '../terminal/option-values.ts'
import { type BatchProgress, batchLine, type ProgressView, progressView } from '../terminal/progress-view.ts'
import { counted, humanCount, humanDuration, humanUsd, writeLine } from '../terminal/terminal.ts'

interface GatherFlags extends ConfigFlags, UpstreamFlags {
  port?: number
  model?: string
  window?: string
  metadata?: Record<string, string>
  entity?: string
  fresh?: boolean
}

/** The longest time in ms for which open requests are cancelled at the end. */
const CANCEL_MS = 15_000
/** The API key for programs that need one: the service's key is not passed on. */
const NO_KEY = 'offpeak-gather'
/** The exit code by which shells report a missing program. */
const EXIT_NO_PROGRAM = 127

export function addGather(program: Command, shell: Shell): void {
  const gather = withConfig(
    program
      .command('gather')
      .description('run a program that calls a model, each call as a single request')
      .argument('[command...]', 'the program and its arguments, behind --')
      .option('--port <number>', 'port to listen on (default: any free one)', wholeNumber(0, 65_535))
      .option('--model <id>', 'the model that answers, whichever a call names')
      .option('--window <duration>', WINDOW_HELP)
      .option(
        '--metadata <key=value>',
        'a pair of metadata for each request; may be repeated',
        pairsOf(String),
      )
      .option('--entity <type:id>', 'entity to attribute usage to; short for --metadata entity=…')
      .option('--fresh', 'ask anew what an earlier run has asked, and pay for it again'),
  )
  examples(
    withUpstream(gather).action((command: string[], flags: GatherFlags) => runGather(shell, command, flags)),
    'offpeak gather -- python agent.py',
    'offpeak gather --window 24h --entity team:evals -- inspect eval task.py --model openai/qwen3-8b',
    'offpeak gather --port 8800      # until it is interrupted; clients use http://127.0.0.1:8800/v1',
  ).addHelpText(
    'after',
    `
The program gets OPENAI_BASE_URL, OPENAI_API_KEY, ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY. Its calls are answered when
their requests have ended, so give it time to wait and many calls at once. Equal calls of a later run get the same answers
without being paid again, as long as the service keeps them. What is open when the program ends is cancelled.
Exit code: that of the program; 1 nothing was run; 127 there is no such program.`,
  )
}

async function runGather(shell: Shell, command: readonly string[], flags: GatherFlags): Promise<void> {
  const [program, ...args] = command
  if (program === undefined && flags.port === undefined)
    throw new Failure(
      'there is nothing to run; name a program behind --, or a port for other programs with --port',
    )
  const { clock, terminal } = shell
  // The program first gets the signal, and may call until it ends.
  const ended = new AbortController()
  const view = progressView(terminal.stderr, clock, program !== undefined)
  const connection = await connectOrStart(shell, flags, { view, signal: ended.signal })
  try {
    const { client } = connection
    const terms = {
      model: flags.model,
      completion_window: flags.window && (await windowFor(client, flags.window)),
      metadata: metadataOf(flags),
    }
    // A wrong address, a missing scope or an unknown model is reported before the program runs.
    await client.get(AnyObject, '/v1/batches', { limit: 1 })
    const { live_price_share: share } = await client.get(QuotasObject, '/v1/quotas')
    if (terms.model !== undefined) await client.get(ModelObject, modelPath(terms.model))
    const file = join(stateFolder(shell.env, 'gather'), client.keyHash)
    const known = await KnownRequests.open(file, flags.fresh === true, clock.now())
    let reason: string | undefined
    const show = (): void =>
      view.show('gather', (columns, paint) => batchLine(progressOf(gateway.counts, reason), columns, paint))
    const requests = new SingleRequests(connection, (said) => {
      reason = said
      show()
    })
    const gateway = new Gateway({
      client,
      requests,
      known,
      terms,
      onChange: show,
      onError: (text) => view.message(`A call failed: ${text}`),
    })
    const began = clock.steady()
    const url = await gateway.listen(flags.port ?? 0)
    try {
      if (program === undefined) {
        const interrupted = shell.interruption()
        writeLine(terminal.stdout, `offpeak gather listening on ${url}/v1`)
        await aborted(interrupted)
      } else shell.exit(await runProgram(shell, program, args, url))
    } finally {
      gateway.close()
      view.stop()
      await cancelOpen(shell, requests, view, ended)
    }
    const failure = await known.close()
    if (failure)
      view.message(
        `The requests of this run are not remembered, and an equal run would pay again: ${failure.message}`,
      )
    report(view, gateway, share ? gateway.counts.cost_usd * (1 / share - 1) : 0, clock.steady() - began)
  } finally {
    view.stop()
    await connection.close()
  }
}

const FORWARDED = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const

/** Runs the program and returns its exit code. */
async function runProgram(
  shell: Shell,
  program: string,
  args: readonly string[],
  url: string,
): Promise<number> {
  const { NO_PROXY, no_proxy = NO_PROXY } = shell.env
  const noProxy = [no_proxy, HOST].filter(Boolean).join(',')
  const child = spawn(program, args, {
    stdio: 'inherit',
    env: {
      ...shell.env,
      NO_PROXY: noProxy,
      no_proxy: noProxy,
      OPENAI_BASE_URL: `${url}/v1`,
      OPENAI_API_KEY: NO_KEY,
      ANTHROPIC_BASE_URL: url,
      ANTHROPIC_API_KEY: NO_KEY,
    },
  })
  const forward = (signal: NodeJS.Signals): void => {
    // A terminal also sends Ctrl-C to the program.
    if (signal !== 'SIGINT' || shell.terminal.stdin?.isTTY !== true) child.kill(signal)
  }
  for (const signal of FORWARDED) process.on(signal, forward)
  try {
    const [code, signal]: unknown[] = await once(child, 'exit')
    if (typeof code === 'number') return code
    return 128 + (Object.entries(constants.signals).find(([name]) => name === signal)?.[1] ?? 0)
  } catch (error) {
    if (hasCode(error, 'ENOENT'))
      throw new Failure(`there is no program "${program}" on the PATH`, EXIT_NO_PROGRAM)
    if (hasCode(error, 'EACCES'))
      throw new Failure(`"${program}" is not a program that can be run`, EXIT_NO_PROGRAM)
    throw error
  } finally {
    for (const signal of FORWARDED) process.off(signal, forward)
  }
}

/** Cancels the open requests, whose answers no call awaits. */
async function cancelOpen(
  { clock }: Shell,
  requests: SingleRequests,
  view: ProgressView,
  ended: AbortController,
): Promise<void> {
  const isDone = new AbortController()
  void sleep(clock, CANCEL_MS, isDone.signal).then(() => ended.abort())
  const { cancelled, left } = await requests.cancelOpen()
  isDone.abort()
  if (cancelled > 0) view.message(`Cancelled ${counted(cancelled, 'request')} that had not ended.`)
  if (left > 0)
    view.message(
      `${counted(left, 'request')} could not be cancelled, and may still be sent. The same calls of another run get the answers.`,
    )
}

function progressOf({ sent, answered, failed, cost_usd }: Counts, reason: string | undefined): BatchProgress {
  const waiting = sent - answered - failed
  const unknown = { notRun: 0, rate: null, tokenRate: null, leftMs: null }
  const status = `gather: ${humanCount(waiting)} waiting`
  return {
    ...unknown,
    status,
    total: sent,
    done: answered + failed,
    failed,
    cost_usd,
    reason: waiting > 0 ? reason : undefined,
  }
}

function report(view: ProgressView, { counts }: Gateway, saved: number, tookMs: number): void {
  const { sent, answered, failed, known, cost_usd } = counts
  const earlier = known > 0 ? ` (${humanCount(known)} by requests of earlier runs; --fresh asks anew)` : ''
  const less = saved > 0 ? ` (${humanUsd(saved)} less than live calls)` : ''
  view.message(
    `${counted(sent, 'call')}: ${humanCount(answered)} answered${earlier}, ${humanCount(failed)} failed, ${humanUsd(cost_usd)}${less}, in ${humanDuration(tookMs)}.`,
  )
}
