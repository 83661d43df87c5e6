// man/offpeak.1: every command with its arguments and options, from the declarations of the command line. It is part of
// the package, and not kept in the tree.
import { Command } from 'commander'
import { COMMANDS } from '../src/cli/program.ts'
import { systemClock } from '../src/domain/clock.ts'
import { launchOnly } from '../test/fakes/offpeak.ts'

const EXIT_CODES = [
  ['0', 'Success; of run and results, every line was answered.'],
  ['1', 'An error, or wrong arguments.'],
  ['3', 'Some lines have no answer.'],
  [
    '4',
    'run sent nothing: the same run has finished before, or is running; or the table of a retry has changed.',
  ],
  ['127', 'gather found no such program; else its exit code is that of the program.'],
  ['130', 'Interrupted.'],
] as const

export async function manPage(version: string): Promise<string> {
  const program = new Command('offpeak')
  // No command runs.
  const shell = {
    launch: launchOnly(),
    access: { baseUrl: undefined, apiKey: undefined },
    env: {},
    terminal: process,
    clock: systemClock,
    version,
    interruption: () => new AbortController().signal,
    exit: () => {},
  }
  for (const add of COMMANDS) add(program, shell)
  const tagged = (rows: readonly (readonly [string, string])[]): string[] =>
    rows.flatMap(([tag, text]) => ['.TP', `.B ${escaped(tag)}`, escaped(text)])
  const of = (command: Command, path: string): string[] => {
    const help = command.createHelp()
    const inner = command.commands.flatMap((one) => of(one, `${path} ${one.name()}`))
    const own = [
      `.SS ${escaped(`${path} ${command.usage()}`)}`,
      escaped(`${command.description()}.`),
      ...tagged(help.visibleArguments(command).map((one) => [one.name(), one.description])),
      ...tagged(
        help.visibleOptions(command).map((one) => [help.optionTerm(one), help.optionDescription(one)]),
      ),
    ]
    return command.commands.length > 0 ? inner : own
  }
  return [
    `.TH OFFPEAK 1 "" "offpeak ${version}"`,
    '.SH NAME',
    escaped('offpeak - batch inference on your own machines'),
    '.SH SYNOPSIS',
    '.B offpeak',
    '.I command',
    escaped('[option ...] [argument ...]'),
    '.SH COMMANDS',
    ...program.commands.flatMap((one) => of(one, one.name())),
    '.SH EXIT STATUS',
    ...tagged(EXIT_CODES),
    '.SH ENVIRONMENT',
    ...tagged([
      ['OFFPEAK_BASE_URL, OFFPEAK_API_KEY', 'The service that commands call.'],
      ['OFFPEAK_LOG_LEVEL', 'With debug, an error is followed by its stack.'],
    ]),
    '',
  ].join('\n')
}

/** As roff reads it. */
function escaped(text: string): string {
  return text.replaceAll('\\', '\\e').replaceAll('-', '\\-').replace(/^[.']/gm, '\\&$&')
}
