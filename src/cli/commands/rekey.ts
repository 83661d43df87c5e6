// rekey: puts everything under another master key, with the service stopped.
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
    .description('change the master key; the service has to be stopped')
    .option('--to-file <file>', 'the new key is in this file (default: a fresh one is made)')
    .option('--to-env <name>', 'the new key is in this variable')
  examples(
    withConfig(withJson(rekey)).action((flags: Flags) => run(shell, flags)),
    'offpeak rekey',
    'NEW_KEY=$(openssl rand -base64 32) offpeak rekey --to-env NEW_KEY',
  ).addHelpText('after', '\nInterrupted, it goes on where it stopped when it is run again.')
}

async function run(shell: Shell, flags: Flags): Promise<void> {
  const { stdout, stderr } = shell.terminal
  const { toFile, toEnv } = flags
  if (toFile !== undefined && toEnv !== undefined) throw new Failure('give --to-file or --to-env, not both')
  let told = 0
  const config = await shell.launch.loadConfig(flags)
  const { rekey } = await shell.launch.adminCommands()
  const report = await rekey(config, {
    toFile,
    toEnv,
    tell(done) {
      if (done < told + TELL_EVERY) return
      told = done
      writeLine(stderr, `${humanCount(done)} keys rewrapped`)
    },
  })
  if (flags.json) return printJson(stdout, report)
  const { key_id, path, rewrapped, total, opened } = report
  writeLine(
    stdout,
    `The master key is ${key_id} now: ${humanCount(rewrapped)} of ${counted(total, 'key')} rewrapped, ${counted(opened, 'blob')} opened with it.`,
  )
  if (path !== null)
    writeLine(stdout, `It is in ${path}; the one before is kept in ${path}.old, for backups made before.`)
  else writeLine(stdout, `From now on OFFPEAK_MASTER_KEY has to be the new key for every process.`)
}

const TELL_EVERY = 100_000
