// What a result line must be: the answer to its own request or an error that has a cause, shared only with identical lines
// of its batch, and billed as the answer that it is.
import { nanosFromUsd } from '../../src/domain/money.ts'
import type { BatchRow } from '../../src/store/schema.ts'
import type { PlannedBatch, PlannedLine } from './plans.ts'
import { POISON } from './refused-texts.ts'
import type { SimulatedRun } from './run.ts'

export interface CheckedLine {
  line: PlannedLine
  isAnswered: boolean
  cost_nanos: number
  isShared: boolean
}

/** Adds what is wrong with a result line to `found`. */
export function checkLine(
  run: SimulatedRun,
  { planned, row }: { planned: PlannedBatch; row: BatchRow },
  line: PlannedLine,
  text: string,
  found: string[],
): CheckedLine {
  const { shared_from, response, error } = JSON.parse(text)
  const isAnswered = response !== null
  const isShared = shared_from !== undefined
  const cost_nanos = isAnswered ? nanosFromUsd(response.body.usage.cost_usd) : 0
  if (isShared) {
    run.tally.count(isAnswered ? 'dedupe: shared an answer' : 'dedupe: shared an error')
    const from = run.plans.line(planned.id, shared_from.custom_id)
    if (!line.isShared) found.push(`${line.name} shares an answer, which its batch did not ask for`)
    if (from?.request !== line.request || from === line)
      found.push(`${line.name} is said to be shared from ${shared_from.custom_id}`)
    if (isAnswered && (cost_nanos !== 0 || tokensOfUsage(response.body.usage) !== 0))
      found.push(`${line.name} is shared and has used ${JSON.stringify(response.body.usage)}`)
  }
  if (!isAnswered) {
    run.tally.count(`failed: ${error.code}`)
    if (!hasCause(run, { planned, row }, line, error.code))
      found.push(`${line.name} failed without a cause: ${JSON.stringify(error)}`)
    return { line, isAnswered, cost_nanos, isShared }
  }
  const { said, missed, cut, asked } = contentOf(response.body)
  if ((said ?? missed ?? cut) !== line.request)
    found.push(`${line.name} asked ${line.request} and was answered ${said ?? missed ?? cut}`)
  if (asked > (planned.reask?.max ?? 0)) found.push(`${line.name} was asked again ${asked} times`)
  if (said !== undefined && asked > 0) run.tally.count('reask: answered in the end')
  if (!isShared && !isCostOfAnswers(run, line, asked + 1, cost_nanos))
    found.push(`${line.name} costs ${cost_nanos}, asked ${asked + 1} times`)
  return { line, isAnswered, cost_nanos, isShared }
}

type Answer =
  | { choices: [{ message: { content: string } }] }
  | { content: [{ text: string }] }
  | { summary: string }

interface Content {
  /** The request, by whether the answer fits its schema, misses it or is cut. */
  said?: string
  missed?: string
  cut?: string
  /** How often it was asked before. */
  asked: number
}

/** `body`: of an answer of any endpoint. */
export function contentOf(body: Answer): Content {
  const content =
    'choices' in body
      ? body.choices[0].message.content
      : 'summary' in body
        ? body.summary
        : body.content[0].text
  return content.startsWith('{') ? JSON.parse(content) : { said: content, asked: 0 }
}

/** What a server has made for an answer, which tells it from others. */
export function tokensMade(usage: Record<string, number>): number {
  const { completion_tokens, output_tokens, written, seconds } = usage
  return completion_tokens ?? output_tokens ?? written ?? Math.ceil(seconds ?? 0)
}

/** Where it names no total, as that of a message, the sum of its counts. */
export function tokensOfUsage({ cost_usd: _, total_tokens, ...counts }: Record<string, number>): number {
  return total_tokens ?? Object.values(counts).reduce((sum, count) => sum + count, 0)
}

/** An answer without token counts is priced by estimate, so its cost cannot be checked here. `count`: of its answers. */
function isCostOfAnswers({ server }: SimulatedRun, line: PlannedLine, count: number, nanos: number): boolean {
  if (server.unmetered.has(line.request)) return true
  return sumsOf(server.costs.get(line.request) ?? [], count).has(nanos)
}

/** The sums of so many of the values. */
function sumsOf(values: readonly number[], count: number): Set<number> {
  const sums = Array.from({ length: count + 1 }, () => new Set<number>())
  sums[0]!.add(0)
  for (const value of values)
    for (let some = count; some > 0; some--) for (const sum of sums[some - 1]!) sums[some]!.add(sum + value)
  return sums[count]!
}

/** Whether something has happened in the run that explains the error. */
function hasCause(
  run: SimulatedRun,
  { planned, row }: { planned: PlannedBatch; row: BatchRow },
  line: PlannedLine,
  code: string,
): boolean {
  const { caps, servers } = run
  switch (code) {
    case 'batch_expired':
      return run.now() >= planned.expires_at
    case 'batch_cancelled':
      return row.cancelling_at !== null
    case 'request_cancelled':
      return planned.cancelledLines?.has(line.custom_id) === true
    case 'input_file_deleted':
      return planned.isInputDeleted
    case 'usage_limit_exceeded':
      return caps.hasAny(planned.project_id)
    case 'model_not_found':
      return line.model === 'unknown' || servers.removed.has(line.model)
    case 'endpoint_not_supported':
      return servers.removed.has(planned.endpoint)
    case 'upstream_rejected':
      // A cell that does not know an endpoint rejects lines, too.
      return /(refuse|toxic)$/.test(line.request) || servers.removed.has(planned.endpoint)
    case 'internal_error':
      // The whole chunk of a line that cannot be stored ends so.
      return planned.lines.some(({ entity, chunk }) => entity === POISON && chunk === line.chunk)
    case 'upstream_unavailable':
    case 'upstream_timeout':
    case 'upstream_invalid_response':
      return /(refuse|toxic|poison)$/.test(line.request) || !servers.mustAnswer(line.model)
    default:
      return false
  }
}
