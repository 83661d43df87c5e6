// Commands that call the API: opens a connection before the command and closes it after.
import type { Command } from 'commander'
import type { ConfigFlags } from '../launch.ts'
import type { Shell } from '../shell.ts'
import { withConfig, withJson } from '../terminal/option-values.ts'
import { type Connection, connect } from './connect.ts'

export interface ApiFlags extends ConfigFlags {
  json?: boolean
}

/** Adds a command with the options of every API command. */
export function apiCommand(parent: Command, name: string, description: string): Command {
  return withConfig(withJson(parent.command(name).description(description)))
}

export async function withApi(
  shell: Shell,
  flags: ApiFlags,
  act: (connection: Connection) => Promise<void>,
): Promise<void> {
  const connection = await connect(shell, flags, shell.interruption())
  try {
    await act(connection)
  } finally {
    await connection.close()
  }
}
