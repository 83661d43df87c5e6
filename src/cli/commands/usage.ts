// usage: shows usage and cost, and the spend under each limit.
import { type Command, InvalidArgumentError } from 'commander'
import { dayOf, dayText, parseDay } from '../../domain/days.ts'
import { windowAt } from '../../domain/limit.ts'
import { compressionOf, formatOf } from '../../tables/table.ts'
import { LimitObject } from '../../wire/limit.ts'
import { USAGE_GROUPS, UsageObject } from '../../wire/usage.ts'
import { type ApiClient, type Call, unless } from '../client/client.ts'
import { withApi } from '../client/connect.ts'
import { writeWhole } from '../output-file.ts'
import type { JsonFlags, Shell } from '../shell.ts'
import { Failure } from '../terminal/failure.ts'
import { examples, jsonCommand, someOf } from '../terminal/option-values.ts'
import {
  counted,
  humanCount,
  humanUsd,
  type Output,
  printJson,
  printTable,
  writeData,
  writeLine,
} from '../terminal/terminal.ts'
import { appliesTo, capText } from './limits.ts'

const PATH = '/v1/usage/entities'
const PARQUET = 'application/vnd.apache.parquet'
const LIMITS_MAX = 100
const GROUPED_BY_DEFAULT = ['entity', 'model']

interface UsageFlags extends JsonFlags {
  entity?: string
  entityType?: string
  key?: string
  model?: string
  start?: string
  end?: string
  groupBy?: string[]
  csv?: boolean
  focus?: boolean
  output?: string
  project?: string
}

export function addUsage(program: Command, shell: Shell): void {
  examples(
    jsonCommand(program, 'usage', 'show usage, cost and the spend under each limit')
      .option('--entity <type:id>', 'only usage of this entity')
      .option('--entity-type <type>', 'only usage of entities of this type')
      .option('--key <id>', 'only usage of batches that were created with this API key')
      .option('--model <name>', 'only usage of this model')
      .option('--start <day>', 'first day, in UTC (default: the first of this month)', day)
      .option('--end <day>', 'day after the last, in UTC (default: none)', day)
      .option(
        '--group-by <list>',
        `some of ${USAGE_GROUPS.join(', ')} (default: entity,model)`,
        someOf(USAGE_GROUPS, 'Expected some of'),
      )
      .option('--csv', 'print every group as CSV')
      .option('--focus', 'write FOCUS 1.3 for chargeback: a row a day, project, entity, key, model and meter')
      .option('-o, --output <file>', 'the file of --focus: .csv or .parquet')
      .option('--project <id>', 'usage of another project, or of all with --focus; for operators')
      .action((flags: UsageFlags) => showUsage(shell, flags)),
    'offpeak usage',
    'offpeak usage --group-by day,model --start 2026-01-01 --end 2026-02-01',
    'offpeak usage --entity-type user --group-by entity --csv > usage.csv',
    'offpeak usage --focus --project all --start 2026-01-01 --end 2026-02-01 -o january.parquet',
  )
}

async function showUsage(shell: Shell, flags: UsageFlags): Promise<void> {
  const { stdout, stderr } = shell.terminal
  const now = shell.clock.now()
  const by = flags.groupBy ?? GROUPED_BY_DEFAULT
  const query = {
    entity: flags.entity,
    entity_type: flags.entityType,
    key: flags.key,
    model: flags.model,
    start: flags.start ?? dayText(dayOf(windowAt('month', now).start)),
    end: flags.end,
    project_id: flags.project,
    group_by: by.join(','),
  }
  const { output } = flags
  if ((output !== undefined) !== (flags.focus ?? false))
    throw new Failure(
      '--focus needs a file, and -o is the file of --focus: give both, as --focus -o usage.csv',
    )
  if (output !== undefined && flags.groupBy)
    throw new Failure('--focus has groups of its own: leave --group-by out')
  const format = output === undefined || compressionOf(output) !== null ? undefined : formatOf(output)
  if (output !== undefined && format !== 'csv' && format !== 'parquet')
    throw new Failure(`FOCUS is written as .csv or .parquet; name another file than ${output}`)
  await withApi(shell, flags, async ({ client }) => {
    if (output !== undefined) {
      const headers = { accept: format === 'parquet' ? PARQUET : 'text/csv' }
      await writeWhole(
        output,
        client.whole(PATH, { ...query, group_by: undefined, format: 'focus' }, headers),
      )
      return writeLine(stderr, `table: ${output}`)
    }
    if (flags.csv) return await writeData(stdout, client.whole(PATH, { ...query, format: 'csv' }))
    const usage = await client.get(UsageObject, PATH, query)
    const caps = await readLimitSpend(client, flags, now)
    if (flags.json)
      return printJson(stdout, {
        ...usage,
        caps: caps.map(({ limit, entity, spent }) => ({ limit, who: entity, spent })),
      })
    printTotals(stdout, usage, query)
    if (usage.groups && usage.groups.length > 0) printGroups(stdout, usage.groups, by)
    if (caps.length > 0) printLimitSpend(stdout, caps)
  })
}

/** The spend under the limits that match the flags; empty when the key may not read limits. */
async function readLimitSpend(client: ApiClient, flags: UsageFlags, now: number): Promise<LimitSpend[]> {
  const { entity, entityType: type, key, model } = flags
  const query = { entity, key, model, ...(type !== undefined && { scope: 'entity_type' }) }
  const limits = await unless([403], client.list(LimitObject, '/v1/limits', LIMITS_MAX, query), [])
  const concerned = limits.filter(({ entity_type }) => type === undefined || entity_type === type)
  return await spendByLimit(concerned, now, (query) => client.get(UsageObject, PATH, query))
}

function printTotals(
  output: Output,
  usage: UsageObject,
  { start, end }: { start: string; end?: string | undefined },
): void {
  const { lines, succeeded, failed, not_run, total_tokens, cost_usd } = usage
  const unsent = not_run === 0 ? '' : `, ${humanCount(not_run)} not run`
  const period = end === undefined ? `Since ${start}` : `From ${start} to before ${end}`
  writeLine(
    output,
    `${period}: ${counted(lines, 'line')} (${humanCount(succeeded)} succeeded, ${humanCount(failed - not_run)} failed${unsent}), ${counted(total_tokens, 'token')}, ${humanUsd(cost_usd)}`,
  )
}

type Group = NonNullable<UsageObject['groups']>[number]

function printGroups(output: Output, rows: readonly Group[], by: readonly string[]): void {
  const columns = USAGE_GROUPS.filter((name) => by.includes(name))
  writeLine(output, '')
  const names = columns.map(
    (name) => [name.toUpperCase().replace('_', ' '), (row: Group) => row[name] ?? '-'] as const,
  )
  printTable(output, rows, {
    COST: ({ cost_usd }) => humanUsd(cost_usd),
    LINES: ({ lines }) => humanCount(lines),
    FAILED: ({ failed, not_run }) => humanCount(failed - not_run),
    'NOT RUN': ({ not_run }) => humanCount(not_run),
    TOKENS: ({ total_tokens }) => humanCount(total_tokens),
    ...Object.fromEntries(names),
  })
}

function printLimitSpend(output: Output, caps: readonly LimitSpend[]): void {
  writeLine(output, '')
  const shareOf = ({ limit, spent }: LimitSpend): number => (limit.amount === 0 ? 1 : spent / limit.amount)
  printTable(output, caps, {
    LIMIT: (cap) => bar(shareOf(cap)),
    USED: (cap) => `${Math.floor(shareOf(cap) * 100)}%`.padStart(4),
    SPENT: ({ limit, spent }) => capText(limit, spent),
    CAP: ({ limit }) => capText(limit),
    WINDOW: ({ limit }) => limit.window,
    ACTION: ({ limit }) => limit.action,
    ENTITY: ({ entity }) => entity,
  })
}

function day(text: string): string {
  if (parseDay(text) !== null) return text
  throw new InvalidArgumentError('Expected a day, such as 2026-01-31.')
}

// The spend under each limit in its current window. A limit object has no spend; it is read from the usage of the
// same entities on the same days.

const BAR_WIDTH = 20
/** The number of entities shown for a limit of an entity type: those with the highest spend. */
const SPENDERS_MAX = 10

interface LimitSpend {
  limit: LimitObject
  /** The subject of the spend: an entity, a key or `the project`, and the model of a limit for one model. */
  entity: string
  /** The spend in the limit's metric: USD or tokens. */
  spent: number
}

type Spent = Pick<UsageObject, 'cost_usd' | 'total_tokens' | 'requests'>

/** The spend by limit, from usage that `read` reads, in the order of `limits`; within a limit, highest first. */
async function spendByLimit(
  limits: readonly LimitObject[],
  now: number,
  read: (query: NonNullable<Call['query']>) => Promise<UsageObject>,
): Promise<LimitSpend[]> {
  const spends: LimitSpend[] = []
  for (const limit of limits) {
    const { entity, entity_type, key, model } = limit
    const start = dayText(dayOf(windowAt(limit.window, now).start))
    const spent = ({ cost_usd, total_tokens: tokens, requests }: Spent): number =>
      ({ cost_usd, tokens, requests })[limit.metric]
    if (entity_type === undefined) {
      const usage = await read({ start, entity, key, model })
      spends.push({ limit, entity: appliesTo(limit), spent: spent(usage) })
      continue
    }
    const { groups = [] } = await read({ start, entity_type, model, group_by: 'entity' })
    const spenders = groups.map((group) => ({
      ...{ limit, entity: appliesTo({ model, entity: group.entity ?? '-' }), spent: spent(group) },
    }))
    spenders.sort((a, b) => b.spent - a.spent)
    spends.push(...spenders.slice(0, SPENDERS_MAX))
    if (spenders.length === 0) spends.push({ limit, entity: appliesTo(limit), spent: 0 })
  }
  return spends
}

/** A bar such as `██████████░░░░░░░░░░`; any spend fills at least one cell, and only a share of 1 fills all. */
export function bar(share: number): string {
  const bounded = Math.min(1, Math.max(0, share))
  const exact = bounded * BAR_WIDTH
  const filled = bounded === 0 ? 0 : Math.max(1, Math.floor(exact))
  return '█'.repeat(filled) + '░'.repeat(BAR_WIDTH - filled)
}
