// limits: caps on the spend of an entity, of each entity of a type, or of the project.
import { randomUUID } from 'node:crypto'
import { type Command, InvalidArgumentError } from 'commander'
import { LIMIT_ACTIONS, LIMIT_METRICS, LIMIT_SCOPES, LIMIT_WINDOWS } from '../../domain/limit.ts'
import { DeletedLimit, LimitObject } from '../../wire/limit.ts'
import { type ApiFlags, apiCommand, withApi } from '../client/api-command.ts'
import type { Shell } from '../shell.ts'
import { Failure } from '../terminal/failure.ts'
import { humanCount, humanTime, humanUsd } from '../terminal/format.ts'
import { commaList, examples, fraction, wholeNumber } from '../terminal/option-values.ts'
import { printFields, printJson, printTable } from '../terminal/table.ts'
import { writeLine } from '../terminal/terminal.ts'

interface TermFlags extends ApiFlags {
  action?: string
  description?: string
  notifyAt?: number[]
}

interface CreateFlags extends TermFlags {
  entity?: string
  entityType?: string
  project?: boolean
  usd?: number
  tokens?: number
  window: string
}

interface SetFlags extends TermFlags {
  amount?: number
}

interface ListFlags extends ApiFlags {
  limit: number
  scope?: string
  entity?: string
}

export function addLimits(program: Command, shell: Shell): void {
  const limits = program.command('limits').description('create, change and delete spending limits')
  const { stdout, stderr } = shell.terminal

  examples(
    withTerms(
      apiCommand(limits, 'create', 'create a limit')
        .option('--entity <type:id>', 'limit this entity')
        .option('--entity-type <type>', 'limit each entity of this type separately, future ones included')
        .option('--project', 'limit the whole project')
        .option('--usd <amount>', 'the cap in USD', amount)
        .option('--tokens <number>', 'the cap in tokens', amount)
        .option('--window <window>', `per ${LIMIT_WINDOWS.join(' or ')} of the UTC calendar`, 'month'),
    ).action((flags: CreateFlags) => createLimit(shell, flags)),
    'offpeak limits create --entity user:42 --usd 25 --notify-at 0.5,0.8',
    'offpeak limits create --entity-type user --tokens 1000000 --window day',
    'offpeak limits create --project --usd 1000 --action notify',
  )

  apiCommand(limits, 'list', 'show limits, newest first')
    .option('--limit <number>', 'how many', wholeNumber(1), 20)
    .option('--scope <scope>', `only ${LIMIT_SCOPES.join(', ')}`)
    .option('--entity <type:id>', 'only limits of this entity')
    .action((flags: ListFlags) => listLimits(shell, flags))

  apiCommand(limits, 'get', 'show a limit')
    .argument('<id>', 'lim_…')
    .action((id: string, flags: ApiFlags) =>
      withApi(shell, flags, async ({ client }) =>
        show(shell, flags, await client.get(LimitObject, pathOf(id))),
      ),
    )

  examples(
    withTerms(
      apiCommand(limits, 'set', 'change a limit; other fields keep their values')
        .argument('<id>', 'lim_…')
        .option('--amount <number>', 'the cap, in the unit of the limit', amount),
    ).action((id: string, flags: SetFlags) => setLimit(shell, id, flags)),
    'offpeak limits set lim_01k0… --amount 50',
  )

  apiCommand(limits, 'delete', 'delete a limit')
    .argument('<id>', 'lim_…')
    .action((id: string, flags: ApiFlags) =>
      withApi(shell, flags, async ({ client }) => {
        const deleted = await client.delete(DeletedLimit, pathOf(id))
        if (flags.json) printJson(stdout, deleted)
        else writeLine(stderr, `${deleted.id} is deleted.`)
      }),
    )
}

function withTerms(command: Command): Command {
  return command
    .option('--action <action>', LIMIT_ACTIONS.join(' or '))
    .option('--description <text>', 'shown in the errors of calls that the limit refuses')
    .option('--notify-at <fractions>', 'create an event at these fractions of the cap: 0.5,0.8', fractions)
}

async function createLimit(shell: Shell, flags: CreateFlags): Promise<void> {
  const { entity, entityType: entity_type, project, usd, tokens, window } = flags
  const scopes = [
    entity === undefined ? [] : [{ scope: 'entity', entity }],
    entity_type === undefined ? [] : [{ scope: 'entity_type', entity_type }],
    project ? [{ scope: 'project' }] : [],
  ].flat()
  const [scope] = scopes
  if (scopes.length !== 1 || scope === undefined)
    throw new Failure('the limit needs one of --entity, --entity-type and --project')
  if ((usd === undefined) === (tokens === undefined))
    throw new Failure('the limit needs a cap: one of --usd and --tokens')
  const [cost_usd, tokensMetric] = LIMIT_METRICS
  const cap = usd === undefined ? { metric: tokensMetric, amount: tokens } : { metric: cost_usd, amount: usd }
  await withApi(shell, flags, async ({ client }) => {
    const body = { ...scope, ...cap, window, ...terms(flags) }
    // The retries of this call create one limit.
    const headers = { 'idempotency-key': `cli-${randomUUID()}` }
    const limit = await client.post(LimitObject, '/v1/limits', body, headers)
    if (flags.json) printJson(shell.terminal.stdout, limit)
    else writeLine(shell.terminal.stdout, limit.id)
  })
}

async function setLimit(shell: Shell, id: string, flags: SetFlags): Promise<void> {
  const change = { ...(flags.amount === undefined ? {} : { amount: flags.amount }), ...terms(flags) }
  if (Object.keys(change).length === 0)
    throw new Failure('there is nothing to change; give --amount, --action, --description or --notify-at')
  await withApi(shell, flags, async ({ client }) =>
    show(shell, flags, await client.post(LimitObject, pathOf(id), change)),
  )
}

async function listLimits(shell: Shell, flags: ListFlags): Promise<void> {
  const { stdout } = shell.terminal
  const { scope, entity } = flags
  await withApi(shell, flags, async ({ client }) => {
    const found = await client.list(LimitObject, '/v1/limits', flags.limit, { scope, entity })
    if (flags.json) return printJson(stdout, found)
    printTable(
      stdout,
      ['ID', 'ENTITY', 'CAP', 'WINDOW', 'ACTION', 'NOTIFY AT', 'CREATED', 'DESCRIPTION'],
      found.map((limit) => [
        limit.id,
        appliesTo(limit),
        capText(limit),
        limit.window,
        limit.action,
        limit.notify_at.map((part) => `${Math.round(part * 1000) / 10}%`).join(' ') || '-',
        humanTime(limit.created),
        limit.description ?? '-',
      ]),
    )
  })
}

/** `user:42`, `each user`, `the project`. */
export function appliesTo({ entity, entity_type }: Pick<LimitObject, 'entity' | 'entity_type'>): string {
  if (entity !== undefined) return entity
  return entity_type === undefined ? 'the project' : `each ${entity_type}`
}

/** `$25.00`, `1,000,000 tokens`. */
export function capText({ metric, amount }: Pick<LimitObject, 'metric' | 'amount'>): string {
  return metric === 'cost_usd' ? humanUsd(amount) : `${humanCount(amount)} tokens`
}

function terms({ action, description, notifyAt }: TermFlags): object {
  return {
    ...(action === undefined ? {} : { action }),
    ...(description === undefined ? {} : { description }),
    ...(notifyAt === undefined ? {} : { notify_at: notifyAt }),
  }
}

function show(shell: Shell, flags: ApiFlags, limit: LimitObject): void {
  if (flags.json) printJson(shell.terminal.stdout, limit)
  else printFields(shell.terminal.stdout, limit)
}

function amount(text: string): number {
  if (/^\d+(\.\d+)?$/.test(text)) return Number(text)
  throw new InvalidArgumentError('Expected an amount, such as 25 or 0.5.')
}

function fractions(text: string): number[] {
  return commaList(text).map(fraction)
}

function pathOf(id: string): string {
  return `/v1/limits/${encodeURIComponent(id)}`
}
