// migrate-data: copies everything to another database and blob store, with the service stopped.
import { existsSync } from 'node:fs'
import type { Command } from 'commander'
import type { Config } from '../../config/config.ts'
import type { ConfigFlags } from '../launch.ts'
import type { Shell } from '../shell.ts'
import { Failure } from '../terminal/failure.ts'
import { counted, humanBytes } from '../terminal/format.ts'
import { examples, withConfig, withJson } from '../terminal/option-values.ts'
import { printJson } from '../terminal/table.ts'
import { writeLine } from '../terminal/terminal.ts'

interface Flags extends ConfigFlags {
  from: string
  to?: string
  release?: boolean
  json?: boolean
}

export function addMigrateData(program: Command, shell: Shell): void {
  const migrate = program
    .command('migrate-data')
    .description('move everything to another database and blob store; stop the service first')
    .requiredOption('--from <place>', 'a configuration file, or DATABASE+BLOBS')
    .option('--to <place>', 'the target, in the same form; both of its stores must be empty')
    .option('--release', 'allow services to use the stores of --from again after a move')
  examples(
    withConfig(withJson(migrate)).action((flags: Flags) => run(shell, flags)),
    'offpeak migrate-data --from sqlite+disk --to postgres+s3',
    "offpeak migrate-data --from sqlite+disk --to 'postgres://offpeak@db/offpeak+s3://offpeak/prod?region=eu-west-1'",
    'offpeak migrate-data --from offpeak.yaml --to new.yaml',
  ).addHelpText('after', `\n${PLACES}`)
}

const PLACES = `DATABASE is "sqlite", "sqlite:PATH" or a PostgreSQL URL, BLOBS is "disk", "disk:PATH" or the URL of a bucket;
"postgres" and "s3" alone stand for the stores that the configuration names. To resume an interrupted move, run
the command again.`

async function run(shell: Shell, flags: Flags): Promise<void> {
  const { stdout, stderr } = shell.terminal
  const from = await placeOf(shell, flags, '--from', flags.from)
  const { migrateData, releaseMoved } = await shell.launch.adminCommands()
  if (flags.release === true) {
    if (flags.to !== undefined) throw new Failure('give --to or --release, not both')
    await releaseMoved(from)
    return writeLine(
      stderr,
      'Services can use these stores again. Changes from now on are not in the stores they were moved to.',
    )
  }
  if (flags.to === undefined)
    throw new Failure('the target is missing; give --to CONFIG or --to DATABASE+BLOBS')
  const to = await placeOf(shell, flags, '--to', flags.to)
  const moved = await migrateData(from, to, (text) => writeLine(stderr, text))
  if (flags.json) return printJson(stdout, moved)
  const { rows, blobs, bytes, opened, missing } = moved
  for (const key of missing) writeLine(stdout, `Blob ${key} was not moved: it is missing from the source.`)
  writeLine(
    stdout,
    `Moved and compared: ${counted(rows, 'row')}, ${counted(blobs, 'blob')} (${humanBytes(bytes)}), ${opened} decrypted at the target.`,
  )
  writeLine(
    stdout,
    'Start the service with the new configuration. Services refuse to start on the old stores.',
  )
}

/** The configuration of one side. */
async function placeOf(shell: Shell, flags: ConfigFlags, option: string, text: string): Promise<Config> {
  const { config, data } = flags
  if (existsSync(text)) return await shell.launch.loadConfig({ config: text, data })
  const match = /^(.+)\+((?:disk|s3)(?::.*)?)$/.exec(text)
  if (match === null)
    throw new Failure(
      `${option}: "${text}" is neither a configuration file that exists nor DATABASE+BLOBS, such as sqlite+disk`,
    )
  const [, database = '', blobs = ''] = match
  const found = await shell.launch.loadConfig({
    config,
    data,
    database: database === 'postgres' ? undefined : database,
    blobs: blobs === 's3' ? undefined : blobs,
  })
  if (database === 'postgres' && found.database.kind !== 'postgres')
    throw new Failure(`${option}: the configuration names no PostgreSQL database (database: postgres://…)`)
  if (blobs === 's3' && found.blobs.kind !== 's3')
    throw new Failure(`${option}: the configuration names no bucket (blobs: s3://…)`)
  return found
}
