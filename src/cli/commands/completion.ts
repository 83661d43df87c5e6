// completion: prints a script that completes commands and options in a shell. The script holds all names, so that a key
// press starts no process.
import { Argument, type Command } from 'commander'
import type { Shell } from '../shell.ts'
import { examples } from '../terminal/option-values.ts'

/** The words that may follow a command: `path` is '' or, with a blank before each name, ' batches list'. */
interface Place {
  path: string
  commands: readonly Choice[]
  options: readonly Choice[]
}

interface Choice {
  /** The names of an option, the long one first. */
  names: readonly string[]
  description: string
  takesValue: boolean
}

/** Adds the command. `program` has all other commands when the script is made. */
export function addCompletion(program: Command, shell: Shell): void {
  examples(
    program
      .command('completion')
      .description('print a script that completes commands and options in your shell')
      .addArgument(new Argument('<shell>', 'your shell').choices(Object.keys(SCRIPTS)))
      .action((name: keyof typeof SCRIPTS) => {
        shell.terminal.stdout.write(SCRIPTS[name](placesOf(program)))
      }),
    'source <(offpeak completion bash)      # in ~/.bashrc',
    'source <(offpeak completion zsh)       # in ~/.zshrc, after compinit',
    'offpeak completion fish | source       # in ~/.config/fish/config.fish',
  )
}

function placesOf(command: Command, path = ''): Place[] {
  const help = command.createHelp()
  const commands = help.visibleCommands(command).filter((one) => one.name() !== 'help')
  const options = help.visibleOptions(command).map(({ long, short, description, required }) => ({
    names: [long, short].filter((name) => name !== undefined),
    description,
    takesValue: required,
  }))
  const choices = commands.map((one) => ({
    names: [one.name()],
    description: one.description(),
    takesValue: false,
  }))
  const own = { path, commands: choices, options }
  return [own, ...commands.flatMap((one) => placesOf(one, `${path} ${one.name()}`))]
}

const SCRIPTS = { bash, zsh, fish }

function bash(places: readonly Place[]): string {
  const words = (kind: 'commands' | 'options'): string =>
    cases(places, (place) => `words=${quoted(place[kind].flatMap(({ names }) => names).join(' '))}`)
  return `_offpeak() {
  local current=\${COMP_WORDS[COMP_CWORD]} at= word words=
  for word in "\${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    case "$at $word" in
      ${pathsOf(places)}) at="$at $word" ;;
    esac
  done
  if [[ $current == -* ]]; then
${words('options')}
  else
${words('commands')}
  fi
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}
complete -o default -F _offpeak offpeak
`
}

function zsh(places: readonly Place[]): string {
  const found = (kind: 'commands' | 'options'): string =>
    cases(places, (place) => {
      const all = place[kind].flatMap(({ names, description }) =>
        names.map((name) => quoted(`${name}:${description}`)),
      )
      return `found=(${all.join(' ')})`
    })
  return `#compdef offpeak
_offpeak() {
  local at= word
  local -a found
  for word in "\${(@)words[2,CURRENT-1]}"; do
    case "$at $word" in
      ${pathsOf(places)}) at="$at $word" ;;
    esac
  done
  if [[ \${words[CURRENT]} == -* ]]; then
${found('options')}
  else
${found('commands')}
  fi
  if (( $#found )); then _describe offpeak found; else _files; fi
}
if [[ \${funcstack[1]} == _offpeak ]]; then _offpeak; else compdef _offpeak offpeak; fi
`
}

function fish(places: readonly Place[]): string {
  const lines = places.flatMap(({ path, commands, options }) => {
    const start = `complete -c offpeak -n ${fishQuoted(`__offpeak_at ${fishQuoted(path)}`)}`
    return [
      ...(commands.length > 0 ? [`${start} -f`] : []),
      ...commands.map(({ names, description }) => `${start} -a ${names[0]} -d ${fishQuoted(description)}`),
      ...options.map(({ names, description, takesValue }) => {
        const all = names.map((name) => name.replace(/^--/, '-l ').replace(/^-(?=\w$)/, '-s '))
        return `${start} ${all.join(' ')}${takesValue ? ' -r' : ''} -d ${fishQuoted(description)}`
      }),
    ]
  })
  return `function __offpeak_at
  set -l at
  for word in (commandline -opc)[2..]
    switch "$at $word"
      case ${places
        .slice(1)
        .map(({ path }) => fishQuoted(path))
        .join(' ')}
        set at "$at $word"
    end
  end
  test "$at" = "$argv[1]"
end
${lines.join('\n')}
`
}

/** The branches of a case statement, one for each place, in bash and zsh. */
function cases(places: readonly Place[], act: (place: Place) => string): string {
  const branches = places.map((place) => `      ${quoted(place.path)}) ${act(place)} ;;`)
  return ['    case "$at" in', ...branches, '    esac'].join('\n')
}

function pathsOf(places: readonly Place[]): string {
  return places
    .slice(1)
    .map(({ path }) => quoted(path))
    .join('|')
}

function quoted(text: string): string {
  return `'${text.replaceAll("'", `'\\''`)}'`
}

function fishQuoted(text: string): string {
  return `'${text.replaceAll('\\', '\\\\').replaceAll("'", "\\'")}'`
}
