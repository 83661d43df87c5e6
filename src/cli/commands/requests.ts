// requests: shows the audit record of an HTTP call or of a line.
import type { Command } from 'commander'
import { type ApiFlags, apiCommand, withApi } from '../client/api-command.ts'
import { AnyObject } from '../client/shapes.ts'
import type { Shell } from '../shell.ts'
import { examples } from '../terminal/option-values.ts'
import { printJson } from '../terminal/table.ts'
import { writeLines } from '../terminal/terminal.ts'

export function addRequests(program: Command, shell: Shell): void {
  const requests = program.command('requests').description('look up audit records')
  examples(
    apiCommand(requests, 'get', 'show the audit record of a line or an HTTP call')
      .argument('<id>', 'req_…, from a result line or the header X-Service-Request-Id')
      .action((id: string, flags: ApiFlags) =>
        withApi(shell, flags, async ({ client }) => {
          const record = await client.get(AnyObject, `/v1/requests/${encodeURIComponent(id)}`)
          if (flags.json) printJson(shell.terminal.stdout, record)
          else writeLines(shell.terminal.stdout, JSON.stringify(record, null, 2))
        }),
      ),
    'offpeak requests get req_01k0…',
  )
}
