// rekey: replaces the master key, with the service stopped.
import type { Command } from 'commander'
import type { ConfigFlags } from '../launch.ts'
import type { Shell } from '../shell.ts'
import { Failure } from '../terminal/failure.ts'
import { counted, humanCount } from '../terminal/format.ts'
import { examples, withConfig, withJson } from '../terminal/option-values.ts'
import { printJson } from '../terminal/table.ts'
import { writeLine } from '../terminal/terminal.ts'

interface Flags extends ConfigFlags {
  toFile?: string
  toEnv?: string
  json?: boolean
}

export function addRekey(program: Command, shell: Shell): void {
  const rekey = program
    .command('rekey')
    .description('replace the master key; stop the service first')
    .option('--to-file <file>', 'file with the new key (default: a new key is generated)')
    .option('--to-env <name>', 'variable with the new key')
  examples(
    withConfig(withJson(rekey)).action((flags: Flags) => run(shell, flags)),
    'offpeak rekey',
    'NEW_KEY=$(openssl rand -base64 32) offpeak rekey --to-env NEW_KEY',
  ).addHelpText('after', '\nTo resume an interrupted run, run the command again.')
}

async function run(shell: Shell, flags: Flags): Promise<void> {
  const { stdout, stderr } = shell.terminal
  const { toFile, toEnv } = flags
  if (toFile !== undefined && toEnv !== undefined) throw new Failure('give --to-file or --to-env, not both')
  let reported = 0
  const config = await shell.launch.loadConfig(flags)
  const { rekey } = await shell.launch.adminCommands()
  const report = await rekey(config, {
    toFile,
    toEnv,
    tell(done) {
      if (done < reported + REPORT_EVERY) return
      reported = done
      writeLine(stderr, `${humanCount(done)} keys rewrapped`)
    },
  })
  if (flags.json) return printJson(stdout, report)
  const { key_id, path, rewrapped, total, opened } = report
  writeLine(
    stdout,
    `The master key is now ${key_id}: ${humanCount(rewrapped)} of ${counted(total, 'key')} rewrapped, ${counted(opened, 'blob')} decrypted with it.`,
  )
  if (path !== null)
    writeLine(stdout, `The new key is in ${path}. The old key is kept in ${path}.old, for earlier backups.`)
  else writeLine(stdout, 'Set OFFPEAK_MASTER_KEY to the new key for every process.')
}

const REPORT_EVERY = 100_000
