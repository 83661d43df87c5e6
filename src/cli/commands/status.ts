// status: shows what the service does, and what keeps it from more; batches get shows the same of one batch.
import type { Command } from 'commander'
import { isTerminal } from '../../domain/batch.ts'
import { sleep } from '../../domain/clock.ts'
import type { BatchObject } from '../../wire/batch.ts'
import { ServiceStatus, type UpstreamStatus } from '../../wire/status.ts'
import { type ApiClient, ApiError } from '../client/client.ts'
import { type ApiFlags, apiCommand, type Connection, withApi } from '../client/connect.ts'
import type { Shell } from '../shell.ts'
import { Interrupted } from '../terminal/failure.ts'
import { examples } from '../terminal/option-values.ts'
import { percent } from '../terminal/progress-view.ts'
import {
  counted,
  humanCount,
  humanDuration,
  humanRate,
  humanTime,
  humanUsd,
  localTime,
  type Output,
  printFields,
  printJson,
  printTable,
  writeLine,
} from '../terminal/terminal.ts'

/** Workers report as often. */
const WATCH_MS = 2_000
const CLEAR = '\u001b[2J\u001b[H'

export function addStatus(program: Command, shell: Shell): void {
  examples(
    apiCommand(program, 'status', 'show what the service does, what waits and why, and what is broken')
      .option('--watch', 'show it again every two seconds, until Ctrl-C')
      .action((flags: ApiFlags & { watch?: boolean }) =>
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
  writeLine(output, `Offpeak ${version}, ${localTime(at)}. Unfinished batches: ${open || 'none'}.`)
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
        `${model} is ${state} since ${localTime(since)}${error === null ? '' : `: ${error}`}`,
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
  const servers = workers.flatMap(({ id, upstreams }) => upstreams.map((server) => ({ server, worker: id })))
  if (servers.length === 0) return
  writeLine(output, '')
  printTable(output, servers, {
    MODEL: ({ server: { model } }) => model,
    SERVER: ({ server: { upstream } }) => upstream,
    'IN FLIGHT': ({ server: { in_flight, concurrency } }) => `${in_flight} of ${concurrency}`,
    MAX: ({ server: { concurrency_max } }) => humanCount(concurrency_max),
    LATENCY: ({ server: { latency_ms } }) => (latency_ms === null ? '-' : humanDuration(latency_ms)),
    LINES: ({ server: { lines_per_s } }) => humanRate(lines_per_s),
    ERRORS: ({ server: { errors_per_s } }) => humanRate(errors_per_s),
    STATE: ({ server }) => stateOf(server),
    'LAST ERROR': ({ server: { last_error } }) => last_error ?? '-',
    ...(workers.length > 1 && { WORKER: ({ worker }: { worker: string }) => worker }),
  })
}

function stateOf({
  circuit,
  reachable,
  hours,
  errors_per_s,
  in_flight,
  concurrency_max,
}: UpstreamStatus): string {
  if (hours?.places === 0) return `closed until ${localTime(hours.until)}`
  if (reachable === false) return 'not reachable'
  if (circuit === 'open') return 'backing off'
  if (errors_per_s > 0) return 'throttled or failing'
  return in_flight >= concurrency_max ? 'at concurrency_max' : 'ok'
}

/** One batch for a person: with times of this place, and what would make it faster. */
export async function showBatch(
  { terminal: { stdout } }: Shell,
  batch: BatchObject,
  client: ApiClient,
): Promise<void> {
  // The same as `created`, for OpenAI's clients.
  const { created_at: _, ...shown } = batch
  const { request_counts: counts, not_run, progress, waiting_reason: reason } = batch
  const times = Object.entries(shown).flatMap(([name, value]) =>
    /_at$|^created$|^start_after$/.test(name) && typeof value === 'number'
      ? [[name, `${localTime(value)} (${humanTime(value)} UTC)`]]
      : [],
  )
  const { completed, failed, total } = counts
  const done = completed + failed - not_run
  const isOpen = !isTerminal(batch.status)
  const servers = isOpen ? await serversOf(client, batch) : []
  const eta = progress?.estimated_completion ?? null
  printFields(stdout, {
    ...shown,
    ...Object.fromEntries(times),
    request_counts: `${humanCount(done)} of ${counted(total, 'line')} done (${percent(done, total)}%), ${humanCount(failed - not_run)} failed, ${humanCount(not_run)} not run`,
    cost_usd: humanUsd(batch.cost_usd),
    ...(isOpen && {
      progress: [
        progress?.lines_per_s == null ? 'no rate yet' : humanRate(progress.lines_per_s),
        ...(eta === null ? [] : [`done at about ${localTime(eta)}`]),
        ...(progress?.at_risk ? ['may miss its completion window'] : []),
      ].join(', '),
      waiting_reason: reason
        ? `${reason.message}${reason.since === undefined ? '' : ` (since ${localTime(reason.since)})`}`
        : null,
    }),
  })
  for (const server of servers)
    writeLine(
      stdout,
      `${server.upstream} has ${server.in_flight} of ${counted(server.concurrency, 'line')} in flight` +
        `${server.latency_ms === null ? '' : ` and answers in ${humanDuration(server.latency_ms)}`}, ${humanRate(server.lines_per_s)}. ${fasterBy(server)}`,
    )
}

/** Of its model, as operators may see them; empty for others. */
async function serversOf(client: ApiClient, { model }: BatchObject): Promise<UpstreamStatus[]> {
  try {
    const { service } = await client.get(ServiceStatus, '/v1/status')
    const all = (service?.workers ?? []).flatMap(({ upstreams }) => upstreams)
    return all.filter((one) => (model === undefined ? one.in_flight > 0 : one.model === model))
  } catch (error) {
    if (error instanceof ApiError && error.status === 403) return []
    throw error
  }
}

/** What would make a server answer more lines. */
function fasterBy(server: UpstreamStatus): string {
  const { in_flight, concurrency, concurrency_max, last_error, hours, live } = server
  if (hours?.places === 0) return `Its \`hours\` keep it closed until ${localTime(hours.until)}.`
  if (server.reachable === false || server.circuit === 'open')
    return `It does not answer: ${last_error ?? 'see "offpeak status"'}.`
  if (server.errors_per_s > 0)
    return `It rejects lines, so that fewer are sent at once: ${last_error ?? 'it is throttled'}. A further server takes the rest.`
  if (live !== undefined && in_flight >= live.share) return 'The rest of it is for live traffic (`live`).'
  if (in_flight >= concurrency_max)
    return `concurrency_max: ${concurrency_max} is reached; raise it if the server can take more, or add a server.`
  if (in_flight >= concurrency) return 'The limit rises as long as the server gets faster by it.'
  return 'It could take more: the lines wait for something else, or there are no more.'
}
