// Declares every command, runs one, and turns its outcome into an exit code and an error message.
import { Command, CommanderError } from 'commander'
import { loadCommands } from './load-commands.ts'
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
  const shell: Shell = {
    launch: options.launch,
    access: options.access,
    env: options.env ?? {},
    terminal: options.terminal,
    clock: options.clock,
    interruption: options.interruption,
    exit(chosen) {
      code = chosen
    },
  }
  try {
    const program = await buildProgram(args[0], shell, options.version)
    await program.parseAsync([...args], { from: 'user' })
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

async function buildProgram(name: string | undefined, shell: Shell, version: string): Promise<Command> {
  const { stdout, stderr } = shell.terminal
  const program = new Command('offpeak')
    .description('Batch inference on your own machines: a JSONL file in, every line answered or explained.')
    .version(version, '-V, --version', 'print the version')
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
