// reload: has running services take up a changed configuration file.
import type { Command } from 'commander'
import type { ConfigFlags } from '../launch.ts'
import type { Shell } from '../shell.ts'
import { Failure } from '../terminal/failure.ts'
import { examples, withConfig } from '../terminal/option-values.ts'
import { writeLine } from '../terminal/terminal.ts'

export function addReload(program: Command, shell: Shell): void {
  const reload = program
    .command('reload')
    .description('have the services of a data folder take up changed models, prices, upstreams and hours')
  examples(
    withConfig(reload).action((flags: ConfigFlags) => reloadServices(shell, flags)),
    'offpeak reload',
  )
}

async function reloadServices(shell: Shell, flags: ConfigFlags): Promise<void> {
  const { stdout, stderr } = shell.terminal
  // A file with mistakes is reported here already, and no service is asked.
  const config = await shell.launch.loadConfig(flags)
  const answers = await shell.launch.reload(config)
  if (answers.size === 0)
    throw new Failure(
      `no service that runs on this machine uses the data folder ${config.data_dir}; name it with --data`,
    )
  const failed: string[] = []
  for (const [pid, { error, needsRestart }] of answers) {
    if (error !== null) failed.push(`process ${pid} changed nothing: ${error}`)
    else writeLine(stdout, `process ${pid} has taken up the configuration`)
    if (error === null && needsRestart.length > 0)
      writeLine(stderr, `offpeak: process ${pid} needs a restart for changes of ${needsRestart.join(', ')}`)
  }
  if (failed.length > 0) throw new Failure(failed.join('\n'))
}
