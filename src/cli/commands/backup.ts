// backup: copies database and blobs while the service runs.
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
    .argument('<dir>', 'created if it does not exist; an existing backup is brought up to date')
  examples(
    withConfig(withJson(backup)).action((dir: string, flags: ConfigFlags & { json?: boolean }) =>
      run(shell, dir, flags),
    ),
    'offpeak backup /backups/offpeak',
  ).addHelpText(
    'after',
    '\nThe backup does not contain the master key, and cannot be read without it: keep the key elsewhere.',
  )
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
    writeLine(
      stdout,
      `Blob ${key} is missing from the service; run "offpeak doctor" to see which batch it belongs to.`,
    )
  writeLine(
    stdout,
    `Backed up: the database and ${counted(blobs, 'blob')}, ${copied} of them new (${humanBytes(bytes_copied)}). The master key is not included.`,
  )
}
