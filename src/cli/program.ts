// Declares every command, runs one, and turns its outcome into an exit code and an error message.
import { Writable } from 'node:stream'
import { Command, CommanderError } from 'commander'
import { nearest } from '../domain/text.ts'
import { addApply } from './commands/apply.ts'
import { addAsk } from './commands/ask.ts'
import { addAudit } from './commands/audit.ts'
import { addBatches, addRequests, addRetry } from './commands/batches.ts'
import { addCompletion } from './commands/completion.ts'
import { addConsole } from './commands/console.ts'
import { addFiles } from './commands/files.ts'
import { addGather } from './commands/gather.ts'
import { addKeys } from './commands/keys.ts'
import { addLimits, addQuotas } from './commands/limits.ts'
import { addModels } from './commands/models.ts'
import { addPlan } from './commands/plan.ts'
import { addNextRound, addPrepare } from './commands/prepare.ts'
import { addResults } from './commands/results.ts'
import { addRun } from './commands/run.ts'
import { addConfig, addReload, addServe } from './commands/serve.ts'
import { addSim } from './commands/sim.ts'
import { addStatus } from './commands/status.ts'
import { addBackup, addDoctor, addMigrateData, addRekey } from './commands/stores.ts'
import { addUsage } from './commands/usage.ts'
import { addEvents, addWebhooks } from './commands/webhooks.ts'
import type { Environment, Shell } from './shell.ts'
import { EXIT_FAILED, Failure, failureText } from './terminal/failure.ts'
import { examples } from './terminal/option-values.ts'
import { writeLine, writeLines } from './terminal/terminal.ts'

export interface ProgramOptions extends Omit<Shell, 'exit' | 'env'> {
  /** The environment of the command, empty by default. */
  env?: Environment
  withStack: boolean
}

/** Runs the command of `args` (without node and script) and returns the exit code of the process. */
export async function runProgram(args: readonly string[], options: ProgramOptions): Promise<number> {
  const { stderr } = options.terminal
  let code = 0
  const quiet = { isOn: false }
  const shell: Shell = {
    launch: options.launch,
    access: options.access,
    env: options.env ?? {},
    terminal: Object.create(options.terminal, {
      stderr: { get: () => (quiet.isOn ? NOBODY : stderr) },
    }),
    clock: options.clock,
    version: options.version,
    interruption: options.interruption,
    exit(chosen) {
      code = chosen
    },
  }
  try {
    const program = buildProgram(shell, options)
    for (const command of leavesOf(program))
      command
        .option('-q, --quiet', 'print nothing but results and errors')
        .on('option:quiet', () => (quiet.isOn = true))
    await program.parseAsync(args[0] === '-V' ? ['--version'] : [...args], { from: 'user' })
    return code
  } catch (error) {
    if (error instanceof CommanderError) {
      if (error.exitCode === 0 || error.code === 'commander.help') return error.exitCode
      writeLine(stderr, usageText(error))
      return EXIT_FAILED
    }
    writeLines(stderr, failureText(error, options.withStack))
    return error instanceof Failure ? error.exitCode : EXIT_FAILED
  }
}

/** The stream that discards the messages of a quiet command. */
const NOBODY = new Writable({ write: (_bytes, _encoding, done) => done() })

function leavesOf(command: Command): Command[] {
  return command.commands.flatMap((one) => (one.commands.length === 0 ? [one] : leavesOf(one)))
}

function buildProgram(
  shell: Shell,
  { version, terminal: { stdout, stderr } }: Pick<ProgramOptions, 'version' | 'terminal'>,
): Command {
  const program = new Command('offpeak')
    .description('Batch inference on your own machines: a JSONL file in, every line answered or explained.')
    .version(version, '-v, --version', 'print the version')
    .helpOption('-h, --help', 'show help')
    .exitOverride()
    .configureOutput({
      writeOut: (text) => stdout.write(text),
      writeErr: (text) => stderr.write(text),
      getOutHelpWidth: () => stdout.columns ?? 80,
      getErrHelpWidth: () => stderr.columns ?? 80,
      // runProgram prints the error, in one line.
      outputError: () => {},
    })
  program.hook('preAction', (_program, command) => refuseEmpty(command))
  // A command copies the settings above when it is added.
  for (const add of COMMANDS) add(program, shell)
  return examples(
    program,
    'offpeak run examples/gsm8k.jsonl     # one file, start to finish',
    `offpeak run reviews.csv --model sim-1 --prompt 'Classify: {{text}}'`,
    'offpeak serve                        # a long-running service',
    'offpeak batches list',
  )
}

/** Throws a Failure for an empty argument or value: a variable of a script that is not set. */
function refuseEmpty(command: Command): void {
  const given = [
    ...command.registeredArguments.map(
      (argument, i) => [`<${argument.name()}>`, command.processedArgs[i]] as const,
    ),
    ...Object.entries(command.opts()).map(([name, value]) => [optionOf(command, name), value] as const),
  ]
  for (const [name, value] of given)
    if (typeof value === 'string' && value.trim() === '')
      throw new Failure(
        `${name} of "offpeak ${commandPath(command)}" is empty; is a variable of your script not set?`,
      )
}

function optionOf(command: Command, attribute: string): string {
  return command.options.find((option) => option.attributeName() === attribute)?.long ?? attribute
}

function commandPath(command: Command): string {
  const above = command.parent?.parent ? `${commandPath(command.parent)} ` : ''
  return above + command.name()
}

/** Commander's message, with a hint to the help. */
function usageText({ message }: CommanderError): string {
  const sentence = message
    .replace(/^error: /, '')
    .replaceAll('\n', ' ')
    // Commander also suggests words that share two letters of five.
    .replace(/'([^']*)' \(Did you mean (?:one of )?([^?]*)\?\)/, (text, wrong: string, names: string) =>
      nearest(wrong, names.split(', ')) === null ? `'${wrong}'` : text,
    )
    .trim()
  return `offpeak: ${sentence.replace(/\.$/, '')}; see "offpeak --help" or "offpeak COMMAND --help"`
}

/** The functions that add the commands, in the order of the help. */
export const COMMANDS: readonly ((program: Command, shell: Shell) => void)[] = [
  addServe,
  addRun,
  addAsk,
  addGather,
  addPrepare,
  addResults,
  addRetry,
  addNextRound,
  addStatus,
  addConsole,
  addAudit,
  addApply,
  addFiles,
  addBatches,
  addRequests,
  addModels,
  addLimits,
  addUsage,
  addQuotas,
  addWebhooks,
  addEvents,
  addKeys,
  addConfig,
  addReload,
  addDoctor,
  addPlan,
  addBackup,
  addRekey,
  addMigrateData,
  addSim,
  addCompletion,
]
