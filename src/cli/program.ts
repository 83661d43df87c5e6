// Declares every command, runs one, and turns its outcome into an exit code and an error message.
import { Writable } from 'node:stream'
import { Command, CommanderError } from 'commander'
import type { Environment, Shell } from './shell.ts'
import { EXIT_FAILED, exitCode, failureText } from './terminal/failure.ts'
import { examples } from './terminal/option-values.ts'
import { writeLine, writeLines } from './terminal/terminal.ts'

export interface ProgramOptions extends Omit<Shell, 'exit' | 'env'> {
  /** Empty by default. */
  env?: Environment
  version: string
  /** Whether an error is printed with its stack. */
  withStack: boolean
}

/** Runs the command that `args` name (without node and script) and returns the exit code of the process. */
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
    interruption: options.interruption,
    exit(chosen) {
      code = chosen
    },
  }
  try {
    const program = await buildProgram(args[0], shell, options)
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
    return exitCode(error)
  }
}

/** Where messages go of a command that is to be quiet. */
const NOBODY = new Writable({ write: (_bytes, _encoding, done) => done() })

function leavesOf(command: Command): Command[] {
  return command.commands.flatMap((one) => (one.commands.length === 0 ? [one] : leavesOf(one)))
}

async function buildProgram(
  name: string | undefined,
  shell: Shell,
  { version, terminal: { stdout, stderr } }: Pick<ProgramOptions, 'version' | 'terminal'>,
): Promise<Command> {
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
  // A command copies the settings above when it is added.
  for (const add of await loadCommands(name)) add(program, shell)
  return examples(
    program,
    'offpeak run examples/gsm8k.jsonl     # one file, start to finish',
    `offpeak run reviews.csv --model sim-1 --prompt 'Classify: {{text}}'`,
    'offpeak serve                        # a long-running service',
    'offpeak batches list',
  )
}

/** Commander's message, and how to get help. */
function usageText({ message }: CommanderError): string {
  const sentence = message
    .replace(/^error: /, '')
    .replaceAll('\n', ' ')
    .trim()
  return `offpeak: ${sentence.replace(/\.$/, '')}; see "offpeak --help" or "offpeak COMMAND --help"`
}

// Loads the files of commands. A call of one command loads its file alone, which takes a fifth of the time that all of
// them take; the help, completion, and the suggestions for a misspelt command need all.

type AddCommand = (program: Command, shell: Shell) => void

/** By the names of the commands that a file adds, in the order of the help. */
const FILES: readonly [names: readonly string[], load: () => Promise<AddCommand>][] = [
  [['serve', 'api', 'worker'], async () => (await import('./commands/serve.ts')).addServe],
  [['run'], async () => (await import('./commands/run.ts')).addRun],
  [['ask'], async () => (await import('./commands/ask.ts')).addAsk],
  [['prepare'], async () => (await import('./commands/prepare.ts')).addPrepare],
  [['results'], async () => (await import('./commands/results.ts')).addResults],
  [['retry'], async () => (await import('./commands/batches.ts')).addRetry],
  [['next-round'], async () => (await import('./commands/next-round.ts')).addNextRound],
  [['console'], async () => (await import('./commands/console.ts')).addConsole],
  [['files'], async () => (await import('./commands/files.ts')).addFiles],
  [['batches'], async () => (await import('./commands/batches.ts')).addBatches],
  [['requests'], async () => (await import('./commands/batches.ts')).addRequests],
  [['models'], async () => (await import('./commands/models.ts')).addModels],
  [['limits'], async () => (await import('./commands/limits.ts')).addLimits],
  [['usage'], async () => (await import('./commands/usage.ts')).addUsage],
  [['quotas'], async () => (await import('./commands/limits.ts')).addQuotas],
  [['webhooks'], async () => (await import('./commands/webhooks.ts')).addWebhooks],
  [['events'], async () => (await import('./commands/webhooks.ts')).addEvents],
  [['keys'], async () => (await import('./commands/keys.ts')).addKeys],
  [['config'], async () => (await import('./commands/config.ts')).addConfig],
  [['reload'], async () => (await import('./commands/config.ts')).addReload],
  [['doctor'], async () => (await import('./commands/stores.ts')).addDoctor],
  [['plan'], async () => (await import('./commands/plan.ts')).addPlan],
  [['backup'], async () => (await import('./commands/stores.ts')).addBackup],
  [['rekey'], async () => (await import('./commands/stores.ts')).addRekey],
  [['migrate-data'], async () => (await import('./commands/stores.ts')).addMigrateData],
  [['sim'], async () => (await import('./commands/sim.ts')).addSim],
  [['completion'], async () => (await import('./commands/completion.ts')).addCompletion],
]

/** Adds the command `name`; without one, or when there is none of that name, every command. */
export function loadCommands(name: string | undefined): Promise<AddCommand[]> {
  const named = FILES.filter(([names]) => name !== undefined && name !== 'completion' && names.includes(name))
  return Promise.all((named.length > 0 ? named : FILES).map(([, load]) => load()))
}
