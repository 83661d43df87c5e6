// config: checks a configuration file, shows what is in force, and prints the JSON Schema that editors use.
import { readFileSync } from 'node:fs'
import type { Command } from 'commander'
import type { ConfigFlags } from '../launch.ts'
import type { Shell } from '../shell.ts'
import { examples, withConfig } from '../terminal/option-values.ts'
import { writeLine } from '../terminal/terminal.ts'

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
  withConfig(config.command('show'))
    .description('print the configuration in force, with defaults filled in and secrets hidden')
    .action(async (flags: ConfigFlags) => {
      stdout.write(await shell.launch.configText(await shell.launch.loadConfig(flags)))
    })
  config
    .command('schema')
    .description('print the JSON Schema of the configuration file, for editors')
    .action(() => {
      stdout.write(readFileSync(SCHEMA, 'utf8'))
    })
  examples(config, 'offpeak config check offpeak.yaml', 'offpeak config schema > offpeak.schema.json')
}
