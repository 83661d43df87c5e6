// Makes commands that call the API once and show what it answered: a list as a table, an object as its fields.
import type { Command } from 'commander'
import type { Static, TObject, TSchema } from 'typebox'
import type { JsonFlags, Shell } from '../shell.ts'
import { jsonCommand, wholeNumber } from '../terminal/option-values.ts'
import { type Columns, printFields, printJson, printTable, writeLine } from '../terminal/terminal.ts'
import { type ApiClient, type Call, DeletedObject, pathOf } from './client.ts'
import { type Connection, withApi } from './connect.ts'

interface ListOrder<T extends TSchema> {
  description: string
  /** The description of the command's argument: the ID of the object whose list is shown. */
  argument?: string
  shape: T
  /** The path of the list. `id`: the argument; empty where the command has none. */
  path: (id: string) => string
  /** Converts the argument to query parameters. */
  query?: (argument: string) => Call['query']
  /** The default of `--limit`. */
  count?: number
  /** Options that filter the list, by query parameter: flags and description. */
  filters?: Readonly<Record<string, readonly [flags: string, description: string]>>
  columns: Columns<Static<T>>
}

/** Adds `list`, or another command that shows objects, newest first. */
export function addList<T extends TSchema>(
  shell: Shell,
  parent: Command,
  name: string,
  { description, argument, shape, path, query: queryOf, count = 20, filters = {}, columns }: ListOrder<T>,
): void {
  const command = jsonCommand(parent, name, description)
  if (argument !== undefined) command.argument('<id>', argument)
  command.option('--limit <number>', 'how many', wholeNumber(1), count)
  for (const [flags, text] of Object.values(filters)) command.option(flags, text)
  command.action(() => {
    const { stdout } = shell.terminal
    const flags = command.opts<JsonFlags & { limit: number }>()
    const given = command.opts<Record<string, string | undefined>>()
    const [id = ''] = command.args
    const chosen = Object.fromEntries(Object.keys(filters).map((name) => [name, given[name]]))
    const query = { ...chosen, ...queryOf?.(id) }
    return withApi(shell, flags, async ({ client }) => {
      const found = await client.list(shape, path(id), flags.limit, query)
      if (flags.json) printJson(stdout, found)
      else printTable(stdout, found, columns)
    })
  })
}

interface ResourceOrder<T extends TObject> extends Omit<ListOrder<T>, 'path' | 'argument'> {
  /** The kind in paths of the API: `files`. */
  kind: string
  /** The noun for an object of the kind, and an example of its ID. */
  one: readonly [noun: string, id: string]
  /** The name of the command that deletes an object, if there is one. */
  deletion?: string
  /** Shows an object on a terminal. */
  show?: Show<Static<T>>
}

/** Adds `list`, `get` and, with `deletion`, `delete` for the objects of one kind. */
export function addResource<T extends TObject>(
  shell: Shell,
  parent: Command,
  { kind, one: [noun, argument], deletion, show, ...list }: ResourceOrder<T>,
): void {
  addList(shell, parent, 'list', { ...list, path: () => `/v1/${kind}` })
  addCall(shell, parent, 'get', {
    description: `show ${noun}`,
    argument,
    call: (id) => (client) => client.get(list.shape, pathOf(kind, id)),
    ...(show && { show }),
  })
  if (deletion === undefined) return
  addCall(shell, parent, 'delete', {
    description: deletion,
    argument,
    call: (id) => (client) => client.delete(DeletedObject, pathOf(kind, id)),
    show: ({ terminal }, { id }) => writeLine(terminal.stderr, `${id} is deleted.`),
  })
}

/** Shows an answer as text; `--json` prints it unchanged instead. `id`: the argument. */
type Show<A> = (shell: Shell, answer: A, id: string, client: ApiClient) => void | Promise<void>

interface CallOrder<A, F> {
  description: string
  /** The name of the argument, if not `id` (in brackets: optional), and its description. */
  argument?: string | readonly [name: string, description: string]
  /** Checks the flags before there is a connection, and returns the call. */
  call: (id: string, flags: F) => (client: ApiClient, connection: Connection) => Promise<A>
  /** Shows the answer; absent: its fields are printed. */
  show?: Show<A>
}

/** Adds a command for one call. Options may be added to the returned command. */
export function addCall<A extends object, F extends JsonFlags = JsonFlags>(
  shell: Shell,
  parent: Command,
  name: string,
  {
    description,
    argument,
    call,
    show = ({ terminal }, answer) => printFields(terminal.stdout, answer),
  }: CallOrder<A, F>,
): Command {
  const command = jsonCommand(parent, name, description)
  if (argument !== undefined) {
    const [placeholder, text] = typeof argument === 'string' ? ['id', argument] : argument
    command.argument(placeholder?.startsWith('[') ? placeholder : `<${placeholder}>`, text)
  }
  return command.action(() => {
    const flags = command.opts<F>()
    const [id = ''] = command.args
    const send = call(id, flags)
    return withApi(shell, flags, async (connection) => {
      const answer = await send(connection.client, connection)
      if (flags.json) printJson(shell.terminal.stdout, answer)
      else await show(shell, answer, id, connection.client)
    })
  })
}

/** Prints only the ID to standard output, for scripts. */
export function showId({ terminal }: Shell, { id }: { id: string }): void {
  writeLine(terminal.stdout, id)
}
