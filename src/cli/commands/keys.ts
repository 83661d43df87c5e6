// keys: issue, list and revoke API keys directly in the database, without an API key.
import { type Command, Option } from 'commander'
import { COMPAT_MODES, type CompatMode, SCOPES, type Scope } from '../../domain/api-key.ts'
import type { RetentionTexts } from '../../domain/retention.ts'
import type { ConfigFlags, KeyRing, Shell } from '../shell.ts'
import { Failure } from '../terminal/failure.ts'
import { examples, retentionOption, someOf, withConfig, withJson } from '../terminal/option-values.ts'
import { humanTime, printJson, printTable, writeLine } from '../terminal/terminal.ts'

interface CreateFlags extends ConfigFlags {
  project: string
  plan?: string
  scopes?: Scope[]
  name?: string
  compat?: CompatMode
  retention?: RetentionTexts
  json?: boolean
}

export function addKeys(program: Command, shell: Shell): void {
  const keys = program.command('keys').description('issue, list and revoke API keys')

  const create = keys
    .command('create')
    .description('create a key, and its project if it does not exist')
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
    withConfig(withJson(create)).action((flags: CreateFlags) => createKey(shell, flags)),
    'offpeak keys create --project research --plan enterprise',
    'offpeak keys create --project ci --scopes files:write,batches:write,batches:read --json',
    'offpeak keys create --project research --compat openai',
  )

  withConfig(withJson(keys.command('list').description('show every key, newest first'))).action(
    (flags: ConfigFlags & { json?: boolean }) => listKeys(shell, flags),
  )

  withConfig(keys.command('revoke').description('revoke a key at once').argument('<id>', 'key_…')).action(
    (id: string, flags: ConfigFlags) => revokeKey(shell, id, flags),
  )
}

async function createKey(shell: Shell, flags: CreateFlags): Promise<void> {
  const { stdout, stderr } = shell.terminal
  const { project, plan, scopes, name, compat, retention } = flags
  await using keys = await shell.launch.keys(await shell.launch.loadConfig(flags), true)
  const made = await keys.create({ project, plan, scopes, name, compat, retention })
  if (flags.json) return printJson(stdout, made)
  writeLine(stdout, made.key)
  writeLine(stderr, `${made.id}, project "${made.project}" on plan ${made.plan}: ${made.scopes.join(' ')}`)
  writeLine(stderr, 'It is shown this once: keep it where you keep passwords.')
}

async function listKeys(shell: Shell, flags: ConfigFlags & { json?: boolean }): Promise<void> {
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
    NAME: ({ name }) => name ?? '-',
    COMPAT: ({ compat }) => compat ?? '-',
    SCOPES: ({ scopes }) => scopes.join(' '),
  })
}

async function revokeKey(shell: Shell, id: string, flags: ConfigFlags): Promise<void> {
  await using keys = await keysOf(shell, flags)
  if (!(await keys.revoke(id)))
    throw new Failure(
      `the key ${id} does not exist or is already revoked; "offpeak keys list" shows every key`,
    )
  writeLine(shell.terminal.stderr, `${id} is revoked.`)
}

async function keysOf(shell: Shell, flags: ConfigFlags): Promise<KeyRing> {
  return await shell.launch.keys(await shell.launch.loadConfig(flags), false)
}
