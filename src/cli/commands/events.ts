// events: lists the events of a project.
import type { Command } from 'commander'
import { EVENT_TYPES } from '../../domain/event.ts'
import { EventObject } from '../../wire/event.ts'
import { type ApiFlags, apiCommand, withApi } from '../client/api-command.ts'
import type { Shell } from '../shell.ts'
import { humanTime } from '../terminal/format.ts'
import { wholeNumber } from '../terminal/option-values.ts'
import { printFields, printJson, printTable } from '../terminal/table.ts'

interface ListFlags extends ApiFlags {
  limit: number
  type?: string
}

export function addEvents(program: Command, shell: Shell): void {
  const events = program.command('events').description('show events of batches and limits')

  apiCommand(events, 'list', 'show events, newest first')
    .option('--limit <number>', 'how many', wholeNumber(1), 20)
    .option('--type <type>', `only one of ${EVENT_TYPES.join(', ')}`)
    .action((flags: ListFlags) => listEvents(shell, flags))

  apiCommand(events, 'get', 'show an event')
    .argument('<id>', 'evt_…')
    .action((id: string, flags: ApiFlags) =>
      withApi(shell, flags, async ({ client }) => {
        const event = await client.get(EventObject, `/v1/events/${encodeURIComponent(id)}`)
        if (flags.json) printJson(shell.terminal.stdout, event)
        else printFields(shell.terminal.stdout, event)
      }),
    )
}

async function listEvents(shell: Shell, flags: ListFlags): Promise<void> {
  const { stdout } = shell.terminal
  await withApi(shell, flags, async ({ client }) => {
    const found = await client.list(EventObject, '/v1/events', flags.limit, { type: flags.type })
    if (flags.json) return printJson(stdout, found)
    printTable(
      stdout,
      ['ID', 'CREATED', 'TYPE', 'SUBJECT'],
      found.map(({ id, created, type, data }) => [id, humanTime(created), type, subject(data)]),
    )
  })
}

/** The batch, or the limit and its entity. */
function subject({ batch_id, limit_id, entity }: Record<string, unknown>): string {
  return [batch_id ?? limit_id, entity].filter((part) => typeof part === 'string').join(' ') || '-'
}
