// status: shows what the service does, and what keeps it from more; batches get shows the same of one batch.
import type { Command } from 'commander'
import { isTerminal } from '../../domain/batch.ts'
import { sleep } from '../../domain/clock.ts'
import { heldBackBy, type ServerState, serversOf } from '../../domain/server-state.ts'
import type { BatchObject } from '../../wire/batch.ts'
import { ServiceStatus, type UpstreamStatus } from '../../wire/status.ts'
import { type ApiClient, unless } from '../client/client.ts'
import { type Connection, withApi } from '../client/connect.ts'
import type { JsonFlags, Shell } from '../shell.ts'
import { Interrupted } from '../terminal/failure.ts'
import { examples, jsonCommand } from '../terminal/option-values.ts'
import { percent } from '../terminal/progress-view.ts'
import {
  counted,
  humanCount,
  humanDuration,
  humanRate,
  humanTime,
  humanUsd,
  type Output,
  printFields,
  printJson,
  printTable,
  writeLine,
} from '../terminal/terminal.ts'

/** The interval of --watch in ms, that of workers' reports. */
const WATCH_MS = 2_000
const CLEAR = '\u001b[2J\u001b[H'

export function addStatus(program: Command, shell: Shell): void {
  examples(
    jsonCommand(program, 'status', 'show what the service does, what waits and why, and what is broken')
      .option('--watch', 'show it again every two seconds, until Ctrl-C')
      .action((flags: JsonFlags & { watch?: boolean }) =>
        withApi(shell, flags, (connection) => showStatus(shell, connection, flags), false),
      ),
    'offpeak status',
    'offpeak status --watch',
  )
}

async function showStatus(
  { terminal: { stdout }, clock }: Shell,
  { client, watch: { signal } }: Connection,
  { json, watch }: { json?: boolean; watch?: boolean },
): Promise<void> {
  for (;;) {
    const status = await client.get(ServiceStatus, '/v1/status')
    if (watch && stdout.isTTY === true && !json) stdout.write(CLEAR)
    if (json) printJson(stdout, status)
    else printStatus(stdout, status)
    if (!watch) return
    await sleep(clock, WATCH_MS, signal)
    if (signal.aborted) throw new Interrupted()
    if (!json) writeLine(stdout, '')
  }
}

function printStatus(
  output: Output,
  { at, version, batches, waiting, workers_alive, service }: ServiceStatus,
): void {
  const open = batches.map(({ status, count }) => `${humanCount(count)} ${status}`).join(', ')
  writeLine(output, `Offpeak ${version}, ${humanTime(at)}. Unfinished batches: ${open || 'none'}.`)
  const broken = [
    ...(workers_alive ? [] : ['no worker runs: start one with "offpeak worker" or "offpeak serve"']),
    ...(service?.stores ?? []).flatMap(({ name, kind, ok, error }) =>
      ok ? [] : [`the ${name} (${kind}) fails: ${error ?? 'it does not answer'}`],
    ),
    ...(service?.workers ?? []).flatMap(({ id, stores_failing }) =>
      stores_failing ? [`worker ${id} cannot use the stores`] : [],
    ),
    ...(service?.models ?? []).map(
      ({ model, state, since, error }) =>
        `${model} is ${state} since ${humanTime(since)}${error === null ? '' : `: ${error}`}`,
    ),
  ]
  for (const text of broken) writeLine(output, `Broken: ${text}`)
  if (waiting.length > 0) {
    writeLine(output, '')
    printTable(output, waiting, {
      BATCHES: ({ batches }) => humanCount(batches),
      'WAIT FOR': ({ code }) => code,
      'SUCH AS': ({ example }) => example,
      BECAUSE: ({ message }) => message,
    })
  }
  if (service === undefined) {
    writeLine(output, 'Servers, workers and stores are shown to keys with the scope operator.')
    return
  }
  const { queue, workers } = service
  writeLine(output, '')
  writeLine(
    output,
    `${counted(workers.length, 'worker')}; chunks: ${queue.chunks.ready} ready, ${queue.chunks.leased} in work, ${queue.chunks.parked} parked.`,
  )
  const servers: readonly Server[] = serversOf(service)
  if (servers.length === 0) return
  writeLine(output, '')
  printTable(output, servers, {
    // An older service may not name the model.
    MODEL: ({ model = '-' }) => model,
    SERVER: ({ upstream }) => upstream,
    'IN FLIGHT': ({ in_flight, concurrency }) => `${in_flight} of ${concurrency}`,
    MAX: ({ concurrency_max }) => humanCount(concurrency_max),
    LATENCY: ({ latency_ms }) => (latency_ms === null ? '-' : humanDuration(latency_ms)),
    LINES: ({ lines_per_s }) => humanRate(lines_per_s),
    ERRORS: ({ errors_per_s }) => humanRate(errors_per_s),
    STATE: stateText,
    'LAST ERROR': ({ last_error }) => last_error ?? '-',
  })
}

type Server = UpstreamStatus & { state: ServerState }

const STATES: Record<Exclude<ServerState, 'outsideHours'>, string> = {
  ...{ healthy: 'ok', unknown: 'ok', starting: 'starting', down: 'not reachable' },
  ...{ throttled: 'throttled', recovering: 'failing' },
}

function stateText(server: Server): string {
  const { state, hours, in_flight, concurrency_max } = server
  if (state === 'outsideHours') return closedText(hours)
  return STATES[state] === 'ok' && in_flight >= concurrency_max ? 'at concurrency_max' : STATES[state]
}

function closedText(hours: Server['hours']): string {
  return hours?.until == null ? 'closed' : `closed until ${humanTime(hours.until)}`
}

/** Shows one batch, with local times, and advice to make it faster. */
export async function showBatch(
  { terminal: { stdout } }: Shell,
  batch: BatchObject,
  client: ApiClient,
): Promise<void> {
  // A copy of `created`, for OpenAI's clients.
  const { created_at: _, ...shown } = batch
  const { request_counts: counts, not_run, usage, progress, waiting_reason: reason } = batch
  const { completed, failed, total } = counts
  const done = completed + failed - not_run
  const isOpen = !isTerminal(batch.status)
  const servers = isOpen ? await serversFor(client, batch) : []
  const eta = progress?.estimated_completion ?? null
  printFields(stdout, {
    ...shown,
    request_counts: `${humanCount(done)} of ${counted(total, 'line')} done (${percent(done, total)}%), ${humanCount(failed - not_run)} failed, ${humanCount(not_run)} not run`,
    ...(usage && {
      usage: `${counted(usage.input_tokens, 'input token')} (${humanCount(usage.input_tokens_details.cached_tokens)} cached), ${counted(usage.output_tokens, 'output token')}`,
    }),
    cost_usd: humanUsd(batch.cost_usd),
    ...(isOpen && {
      progress: [
        progress?.lines_per_s == null ? 'no rate yet' : humanRate(progress.lines_per_s),
        ...(eta === null ? [] : [`done at about ${humanTime(eta)}`]),
        ...(progress?.at_risk ? ['may miss its completion window'] : []),
      ].join(', '),
      waiting_reason: reason
        ? `${reason.message}${reason.since === undefined ? '' : ` (since ${humanTime(reason.since)})`}`
        : null,
    }),
  })
  for (const server of servers) {
    const others = servers.filter(({ model }) => model === server.model)
    writeLine(
      stdout,
      `${server.upstream} has ${server.in_flight} of ${counted(server.concurrency, 'line')} in flight` +
        `${server.latency_ms === null ? '' : ` and answers in ${humanDuration(server.latency_ms)}`}, ${humanRate(server.lines_per_s)}. ${fasterBy(server, others)}`,
    )
  }
}

/** The servers of a batch's model, for operators; empty for others. */
async function serversFor(client: ApiClient, { model }: BatchObject): Promise<Server[]> {
  const service = (await unless([403], client.get(ServiceStatus, '/v1/status'), null))?.service
  const all: Server[] = service === undefined ? [] : serversOf(service)
  return all.filter((one) => (model === undefined ? one.in_flight > 0 : one.model === model))
}

/** Advice for a server to answer more lines. `others`: those of its model, itself included. */
function fasterBy(server: Server, others: readonly Server[]): string {
  const { in_flight, concurrency_max, last_error, hours, live } = server
  const why = heldBackBy(server, others)
  if (why === 'outsideHours') return `Its \`hours\` keep it ${closedText(hours)}.`
  if (why === 'starting') return 'It is being started.'
  if (why === 'down') return `It does not answer: ${last_error ?? 'see "offpeak status"'}.`
  if (why === 'throttled' || why === 'recovering')
    return `It rejects lines, so that fewer are sent at once: ${last_error ?? 'it is throttled'}. A further server takes the rest.`
  if (live !== undefined && in_flight >= live.share) return 'The rest of it is for live traffic (`live`).'
  if (why === 'configured')
    return `concurrency_max: ${concurrency_max} is reached; raise it if the server can take more, or add a server.`
  if (why !== null) return 'The limit rises as long as the server gets faster by it.'
  return 'It could take more: the lines wait for something else, or there are no more.'
}
