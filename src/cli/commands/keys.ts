// keys: issue, list and revoke API keys directly in the database, without an API key.
import { type Command, Option } from 'commander'
import { COMPAT_MODES, type CompatMode, SCOPES, type Scope } from '../../domain/api-key.ts'
import type { RetentionTexts } from '../../domain/retention.ts'
import type { ConfigFlags, JsonFlags, KeyRing, Shell } from '../shell.ts'
import { Failure } from '../terminal/failure.ts'
import { examples, jsonCommand, retentionOption, someOf, withConfig } from '../terminal/option-values.ts'
import { humanTime, printJson, printTable, writeLine } from '../terminal/terminal.ts'
import { type CapFlags, capOf, capText, tellUnpriced, withCap } from './limits.ts'

interface CreateFlags extends CapFlags {
  project: string
  plan?: string
  scopes?: Scope[]
  name?: string
  compat?: CompatMode
  retention?: RetentionTexts
}

export function addKeys(program: Command, shell: Shell): void {
  const keys = program.command('keys').description('issue, list and revoke API keys')

  const create = jsonCommand(keys, 'create', 'create a key, and its project if it does not exist')
    .requiredOption('--project <name>', 'project of the key')
    .option(
      '--plan <name>',
      'plan of the project: payg, enterprise or another configured one (default: payg)',
    )
    .option(
      '--scopes <list>',
      'scopes, separated by commas (default: all but operator)',
      someOf(SCOPES, 'The scopes are'),
    )
    .option('--name <text>', 'a name for the key')
    .addOption(
      new Option('--compat <mode>', 'render answers as clients of that API expect them').choices(
        COMPAT_MODES,
      ),
    )
    .addOption(retentionOption())
  examples(
    withCap(create).action((flags: CreateFlags) => createKey(shell, flags)),
    'offpeak keys create --project research --plan enterprise',
    'offpeak keys create --project ci --scopes files:write,batches:write,batches:read --json',
    'offpeak keys create --project research --compat openai',
    'offpeak keys create --project interns --usd 20 --window week',
  )

  jsonCommand(keys, 'list', 'show every key, newest first').action((flags: JsonFlags) =>
    listKeys(shell, flags),
  )

  const revoke = keys
    .command('revoke')
    .description('revoke a key, or what tokens (auth.jwt) name, at once')
    .argument('[id]', 'key_…')
    .option('--subject <name>', 'every token with this subject (`sub`), in all projects')
    .option('--token-id <id>', 'the one token with this ID (`jti`)')
  examples(
    withConfig(revoke).action((id: string | undefined, flags: RevokeFlags) => revokeKey(shell, id, flags)),
    'offpeak keys revoke key_01k9x2m4q8',
    'offpeak keys revoke --subject system:serviceaccount:team-a:etl',
  )
}

interface RevokeFlags extends ConfigFlags {
  subject?: string
  tokenId?: string
}

async function createKey(shell: Shell, flags: CreateFlags): Promise<void> {
  const { stdout, stderr } = shell.terminal
  const { project, plan, scopes, name, compat, retention } = flags
  const limit = capOf(flags)
  await using keys = await shell.launch.keys(await shell.launch.loadConfig(flags), true)
  const made = await keys.create({ project, plan, scopes, name, compat, retention, limit })
  if (keys.made !== null)
    writeLine(
      stderr,
      `offpeak: no service was here; its database is new: ${keys.made} (--data names another)`,
    )
  if (flags.json) return printJson(stdout, made)
  writeLine(stdout, made.key)
  writeLine(stderr, `${made.id}, project "${made.project}" on plan ${made.plan}: ${made.scopes.join(' ')}`)
  if (made.limit) {
    writeLine(stderr, `${made.limit.id} caps it at ${capText(made.limit)} a ${made.limit.window}.`)
    tellUnpriced(shell.terminal, made.limit)
  }
  writeLine(stderr, 'It is shown this once: keep it where you keep passwords.')
}

async function listKeys(shell: Shell, flags: JsonFlags): Promise<void> {
  const { stdout } = shell.terminal
  await using keys = await keysOf(shell, flags)
  const all = await keys.list()
  if (flags.json) return printJson(stdout, all)
  printTable(stdout, all, {
    ID: ({ id }) => id,
    PROJECT: ({ project }) => project,
    PLAN: ({ plan }) => plan,
    CREATED: ({ created }) => humanTime(created),
    REVOKED: ({ revoked_at }) => humanTime(revoked_at),
    NAME: ({ name, issuer }) => (issuer === undefined ? (name ?? '-') : `${name} of ${issuer}`),
    COMPAT: ({ compat }) => compat ?? '-',
    SCOPES: ({ scopes }) => scopes.join(' '),
  })
}

async function revokeKey(shell: Shell, id: string | undefined, flags: RevokeFlags): Promise<void> {
  const { subject, tokenId } = flags
  const given = [id, subject, tokenId].filter((one) => one !== undefined)
  const [what, ...others] = given
  if (what === undefined || others.length > 0)
    throw new Failure('give the ID of a key, --subject or --token-id')
  await using keys = await keysOf(shell, flags)
  const isFirst =
    id === undefined ? keys.revokeTokens(subject === undefined ? 'jti' : 'sub', what) : keys.revoke(id)
  if (!(await isFirst))
    throw new Failure(
      id === undefined
        ? `${what} is already revoked`
        : `the key ${id} does not exist or is already revoked; "offpeak keys list" shows every key`,
    )
  writeLine(shell.terminal.stderr, `${what} is revoked.`)
}

async function keysOf(shell: Shell, flags: ConfigFlags): Promise<KeyRing> {
  return await shell.launch.keys(await shell.launch.loadConfig(flags), false)
}
