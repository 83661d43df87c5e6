// backup: a copy of database and blobs, taken while the service runs.
import type { Command } from 'commander'
import type { ConfigFlags } from '../launch.ts'
import type { Shell } from '../shell.ts'
import { EXIT_FAILED } from '../terminal/failure.ts'
import { counted, humanBytes } from '../terminal/format.ts'
import { examples, withConfig, withJson } from '../terminal/option-values.ts'
import { printJson } from '../terminal/table.ts'
import { writeLine } from '../terminal/terminal.ts'

export function addBackup(program: Command, shell: Shell): void {
  const backup = program
    .command('backup')
    .description('copy database and blobs into a folder while the service runs (SQLite)')
    .argument('<dir>', 'made if it does not exist; a backup that is there is brought up to date')
  examples(
    withConfig(withJson(backup)).action((dir: string, flags: ConfigFlags & { json?: boolean }) =>
      run(shell, dir, flags),
    ),
    'offpeak backup /backups/offpeak',
  ).addHelpText('after', '\nThe master key is not part of it, and nothing opens without: keep it elsewhere.')
}

async function run(shell: Shell, dir: string, flags: ConfigFlags & { json?: boolean }): Promise<void> {
  const { stdout } = shell.terminal
  const config = await shell.launch.loadConfig(flags)
  const { backup } = await shell.launch.adminCommands()
  const done = await backup(config, dir)
  if (done.missing.length > 0) shell.exit(EXIT_FAILED)
  if (flags.json) return printJson(stdout, done)
  const { blobs, copied, bytes_copied, missing } = done
  for (const key of missing)
    writeLine(stdout, `the service itself has lost blob ${key}; see "offpeak doctor"`)
  writeLine(
    stdout,
    `Backed up: the database and ${counted(blobs, 'blob')}, ${copied} of them new (${humanBytes(bytes_copied)}). The master key is not among them.`,
  )
}
