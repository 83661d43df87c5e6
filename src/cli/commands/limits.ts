// limits: caps on the spend of an entity, of each entity of a type, or of the project. quotas: shows the quotas of a
// project and their use.
import { type Command, InvalidArgumentError, Option } from 'commander'
import {
  LIMIT_ACTIONS,
  LIMIT_METRICS,
  LIMIT_SCOPES,
  LIMIT_WINDOWS,
  type LimitAction,
  type LimitWindow,
} from '../../domain/limit.ts'
import { type CreateKeyLimit, LimitObject } from '../../wire/limit.ts'
import { QuotasObject } from '../../wire/project.ts'
import { pathOf } from '../client/client.ts'
import { createOnce } from '../client/create-once.ts'
import { addCall, addResource, showId } from '../client/object-commands.ts'
import type { JsonFlags, Shell } from '../shell.ts'
import { Failure } from '../terminal/failure.ts'
import { commaList, examples, fraction } from '../terminal/option-values.ts'
import {
  counted,
  humanBytes,
  humanCount,
  humanTime,
  humanUsd,
  printTable,
  writeLine,
} from '../terminal/terminal.ts'

interface TermFlags extends JsonFlags {
  action?: LimitAction
  description?: string
  notifyAt?: number[]
}

export interface CapFlags extends TermFlags {
  model?: string
  usd?: number
  tokens?: number
  requests?: number
  window?: LimitWindow
}

interface CreateFlags extends CapFlags {
  entity?: string
  entityType?: string
  project?: boolean
  key?: string
}

interface SetFlags extends TermFlags {
  amount?: number
}

export function addLimits(program: Command, shell: Shell): void {
  const limits = program.command('limits').description('create, change and delete spending limits')

  const create = addCall(shell, limits, 'create', {
    description: 'create a limit',
    call: (_, flags: CreateFlags) => {
      const body = newLimit(flags)
      return (client, connection) =>
        createOnce(shell, connection, body, (key) =>
          client.post(LimitObject, '/v1/limits', body, { 'idempotency-key': key }),
        )
    },
    show(shell, made) {
      showId(shell, made)
      tellUnpriced(shell.terminal, made)
    },
  })
  create
    .option('--entity <type:id>', 'limit this entity')
    .option('--entity-type <type>', 'limit each entity of this type separately, future ones included')
    .option('--project', 'limit the whole project')
    .option('--key <id>', 'limit what is spent with this API key')
  examples(
    withCap(create),
    'offpeak limits create --entity user:42 --usd 25 --notify-at 0.5,0.8',
    'offpeak limits create --entity-type user --tokens 1000000 --window day',
    'offpeak limits create --project --usd 1000 --action notify',
    'offpeak limits create --entity-type team --model gpt-large --usd 50 --window week',
    'offpeak limits create --key key_01k0… --requests 10000 --window day',
  )

  addResource(shell, limits, {
    description: 'show limits, newest first',
    kind: 'limits',
    one: ['a limit', 'lim_…'],
    deletion: 'delete a limit',
    shape: LimitObject,
    filters: {
      scope: ['--scope <scope>', `only ${LIMIT_SCOPES.join(', ')}`],
      entity: ['--entity <type:id>', 'only limits of this entity'],
      key: ['--key <id>', 'only limits of this API key'],
      model: ['--model <name>', 'only limits that count lines of this model alone'],
    },
    columns: {
      ID: ({ id }) => id,
      FOR: appliesTo,
      CAP: (limit) => capText(limit),
      WINDOW: ({ window }) => window,
      ACTION: ({ action }) => action,
      'NOTIFY AT': ({ notify_at }) =>
        notify_at.map((part) => `${Math.round(part * 1000) / 10}%`).join(' ') || '-',
      CREATED: ({ created }) => humanTime(created),
      DESCRIPTION: ({ description }) => description ?? '-',
    },
  })

  const set = addCall(shell, limits, 'set', {
    description: 'change a limit; other fields keep their values',
    argument: 'lim_…',
    call: (id, flags: SetFlags) => {
      const change = { amount: flags.amount, ...terms(flags) }
      if (Object.values(change).every((value) => value === undefined))
        throw new Failure('there is nothing to change; give --amount, --action, --description or --notify-at')
      return (client) => client.post(LimitObject, pathOf('limits', id), change)
    },
  })
  set.option('--amount <number>', 'the cap, in the unit of the limit', amount)
  examples(withTerms(set), 'offpeak limits set lim_01k0… --amount 50')
}

export function addQuotas(program: Command, shell: Shell): void {
  addCall(shell, program, 'quotas', {
    description: 'show the quotas of the project and their use',
    call: () => (client) => client.get(QuotasObject, '/v1/quotas'),
    show: ({ terminal }, { quotas }) => {
      const shown = (name: string, value: number | null, none: string): string =>
        value === null ? none : name.endsWith('_bytes') ? humanBytes(value) : humanCount(value)
      printTable(terminal.stdout, Object.entries(quotas), {
        QUOTA: ([name]) => name,
        USED: ([name, { used }]) => shown(name, used, '-'),
        LIMIT: ([name, { limit }]) => shown(name, limit, 'none'),
      })
    },
  })
}

/** Adds the options that capOf reads. */
export function withCap(command: Command): Command {
  const window = new Option('--window <window>', 'per part of the UTC calendar (default: month)')
  return withTerms(command)
    .option('--model <name>', 'count lines of this model alone; alone, those of the whole project')
    .option('--usd <amount>', 'the cap in USD', amount)
    .option('--tokens <number>', 'the cap in tokens', amount)
    .option('--requests <number>', 'the cap in lines that are sent', amount)
    .addOption(window.choices(LIMIT_WINDOWS))
}

function withTerms(command: Command): Command {
  return command
    .addOption(new Option('--action <action>', 'default: block').choices(LIMIT_ACTIONS))
    .option('--description <text>', 'shown in the errors of calls that the limit refuses')
    .option('--notify-at <fractions>', 'create an event at these fractions of the cap: 0.5,0.8', (text) =>
      commaList(text).map(fraction),
    )
}

function newLimit(flags: CreateFlags): object {
  const { entity, entityType: entity_type, project, key, model } = flags
  const scopes = [
    entity === undefined ? [] : [{ scope: 'entity', entity }],
    entity_type === undefined ? [] : [{ scope: 'entity_type', entity_type }],
    project ? [{ scope: 'project' }] : [],
    key === undefined ? [] : [{ scope: 'key', key }],
  ].flat()
  if (scopes.length === 0 && model !== undefined) scopes.push({ scope: 'model' })
  const [scope] = scopes
  if (scopes.length !== 1 || scope === undefined)
    throw new Failure('the limit needs one of --entity, --entity-type, --project, --key and --model')
  return { ...scope, ...capOf({ window: 'month', ...flags }) }
}

/** The cap of a limit; undefined where no option of withCap is given. */
export function capOf(flags: CapFlags): CreateKeyLimit | undefined {
  const { model, usd, tokens, requests, window } = flags
  const amounts = { cost_usd: usd, tokens, requests }
  const rest = { model, window, ...terms(flags) }
  if (Object.values({ ...amounts, ...rest }).every((value) => value === undefined)) return undefined
  const [metric, ...others] = LIMIT_METRICS.filter((name) => amounts[name] !== undefined)
  if (metric === undefined || others.length > 0)
    throw new Failure('the limit needs a cap: one of --usd, --tokens and --requests')
  return { ...rest, metric, amount: amounts[metric] ?? 0, window: window ?? 'month' }
}

/** Says which models a new limit does not hold back. */
export function tellUnpriced({ stderr }: Shell['terminal'], { unpriced_models = [] }: LimitObject): void {
  if (unpriced_models.length > 0)
    writeLine(
      stderr,
      `offpeak: lines of models without a price cost nothing, so this cap does not hold them back: ${unpriced_models.join(', ')}. ` +
        'Their price is set in the configuration (models[].price); a cap in tokens holds for all.',
    )
}

/** The subject of a limit: `user:42`, `each user`, `the project`, `each user on gpt-large`. */
export function appliesTo(limit: Pick<LimitObject, 'entity' | 'entity_type' | 'key' | 'model'>): string {
  const { entity, entity_type, key, model } = limit
  const owner = entity ?? key ?? (entity_type === undefined ? 'the project' : `each ${entity_type}`)
  return model === undefined ? owner : `${owner} on ${model}`
}

/** An amount (by default the cap) in the limit's metric: `$25.00`, `1,000,000 tokens`, `500 requests`. */
export function capText({ metric, amount: cap }: LimitObject, amount = cap): string {
  return metric === 'cost_usd' ? humanUsd(amount) : counted(amount, metric.slice(0, -1))
}

function terms({ action, description, notifyAt }: TermFlags) {
  return { action, description, notify_at: notifyAt }
}

function amount(text: string): number {
  if (/^\d+(\.\d+)?$/.test(text)) return Number(text)
  throw new InvalidArgumentError('Expected an amount, such as 25 or 0.5.')
}
