// quotas: shows the quotas of a project and their use.
import type { Command } from 'commander'
import { QuotasObject } from '../../wire/project.ts'
import { type ApiFlags, apiCommand, withApi } from '../client/api-command.ts'
import type { Shell } from '../shell.ts'
import { humanBytes, humanCount } from '../terminal/format.ts'
import { printJson, printTable } from '../terminal/table.ts'

export function addQuotas(program: Command, shell: Shell): void {
  const { stdout } = shell.terminal
  apiCommand(program, 'quotas', 'show the quotas of the project and their use').action((flags: ApiFlags) =>
    withApi(shell, flags, async ({ client }) => {
      const found = await client.get(QuotasObject, '/v1/quotas')
      if (flags.json) return printJson(stdout, found)
      const rows = Object.entries(found.quotas).map(([name, { limit, used }]) => {
        const shown = name.endsWith('_bytes') ? humanBytes : humanCount
        return [name, used === null ? '-' : shown(used), limit === null ? 'none' : shown(limit)]
      })
      printTable(stdout, ['QUOTA', 'USED', 'LIMIT'], rows)
    }),
  )
}
