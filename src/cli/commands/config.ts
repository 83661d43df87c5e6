// config: checks a configuration file, shows the configuration in force, and prints the JSON Schema that editors use.
import { readFileSync } from 'node:fs'
import type { Command } from 'commander'
import type { ConfigFlags, Shell } from '../shell.ts'
import { Failure } from '../terminal/failure.ts'
import { examples, withConfig, withJson } from '../terminal/option-values.ts'
import { printJson, writeLine } from '../terminal/terminal.ts'

/** Drawn by `npm run docs`. */
const SCHEMA = new URL('../../../docs/offpeak.schema.json', import.meta.url)

export function addConfig(program: Command, shell: Shell): void {
  const { stdout } = shell.terminal
  const config = program
    .command('config')
    .description('check a configuration file, show what is in force, print the JSON Schema')
  config
    .command('check')
    .description('report everything that is wrong with a configuration file and the OFFPEAK_ variables')
    .argument('<file>', 'the configuration file')
    .action(async (file: string) => {
      await shell.launch.loadConfig({ config: file })
      writeLine(stdout, `${file} is valid.`)
    })
  withConfig(withJson(config.command('show')))
    .description('print the configuration in force, with defaults filled in and secrets hidden')
    .action(async (flags: ConfigFlags & { json?: boolean }) => {
      const { values, yaml } = await shell.launch.shownConfig(await shell.launch.loadConfig(flags))
      if (flags.json) printJson(stdout, values)
      else stdout.write(yaml)
    })
  config
    .command('schema')
    .description('print the JSON Schema of the configuration file, for editors')
    .action(() => {
      stdout.write(readFileSync(SCHEMA, 'utf8'))
    })
  examples(config, 'offpeak config check offpeak.yaml', 'offpeak config schema > offpeak.schema.json')
}

/** reload: has running services take up a changed configuration file. */
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
