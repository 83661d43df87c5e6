// webhooks: manage webhooks and show their deliveries.
import { type Command, InvalidArgumentError } from 'commander'
import { EVENT_TYPES, isSubscribedType } from '../../domain/event.ts'
import {
  DELIVERY_STATUSES,
  DeletedWebhook,
  DeliveryObject,
  EventObject,
  ReplayedDeliveries,
  WebhookObject,
  WebhookWithSecret,
} from '../../wire/event.ts'
import { type ApiFlags, apiCommand, withApi } from '../client/api-command.ts'
import type { ApiClient } from '../client/client.ts'
import type { Shell } from '../shell.ts'
import { counted, humanTime } from '../terminal/format.ts'
import { commaList, examples, wholeNumber } from '../terminal/option-values.ts'
import { printFields, printJson, printTable } from '../terminal/table.ts'
import { writeLine } from '../terminal/terminal.ts'

interface CreateFlags extends ApiFlags {
  events?: string[]
  description?: string
}

interface RotateFlags extends ApiFlags {
  overlap?: number
}

interface DeliveriesFlags extends ApiFlags {
  limit: number
  status?: string
}

interface ReplayFlags extends ApiFlags {
  event?: string
}

export function addWebhooks(program: Command, shell: Shell): void {
  const webhooks = program.command('webhooks').description('send signed events to a URL, and show deliveries')
  const { stdout, stderr } = shell.terminal

  examples(
    apiCommand(webhooks, 'create', 'create a webhook that sends events to a URL')
      .argument('<url>', 'https://…')
      .option('--events <list>', `some of ${EVENT_TYPES.join(', ')} (default: all)`, eventTypes)
      .option('--description <text>', 'free text')
      .action((url: string, { events, description, ...flags }: CreateFlags) =>
        withApi(shell, flags, async ({ client }) => {
          const body = { url, event_types: events ?? null, description: description ?? null }
          showSecret(shell, flags, await client.post(WebhookWithSecret, '/v1/webhooks', body))
        }),
      ),
    'offpeak webhooks create https://example.com/offpeak --events batch.completed,batch.failed',
  )

  apiCommand(webhooks, 'list', 'show webhooks, newest first')
    .option('--limit <number>', 'how many', wholeNumber(1), 20)
    .action((flags: ApiFlags & { limit: number }) => listWebhooks(shell, flags))

  onOne(shell, webhooks, 'get', 'show a webhook', (client, path) => client.get(WebhookObject, path))
  onOne(shell, webhooks, 'disable', 'stop sending events to a webhook', (client, path) =>
    client.post(WebhookObject, path, { enabled: false }),
  )
  onOne(shell, webhooks, 'enable', 'send new events to a webhook again', (client, path) =>
    client.post(WebhookObject, path, { enabled: true }),
  )

  apiCommand(webhooks, 'delete', 'delete a webhook and its deliveries')
    .argument('<id>', 'wh_…')
    .action((id: string, flags: ApiFlags) =>
      withApi(shell, flags, async ({ client }) => {
        const deleted = await client.delete(DeletedWebhook, pathOf(id))
        if (flags.json) printJson(stdout, deleted)
        else writeLine(stderr, `${deleted.id} is deleted.`)
      }),
    )

  apiCommand(webhooks, 'rotate', 'replace the secret; for a while both secrets sign')
    .argument('<id>', 'wh_…')
    .option('--overlap <seconds>', 'how long both secrets sign (default: a day)', wholeNumber(0))
    .action((id: string, { overlap, ...flags }: RotateFlags) =>
      withApi(shell, flags, async ({ client }) => {
        const body = overlap === undefined ? {} : { overlap_seconds: overlap }
        showSecret(shell, flags, await client.post(WebhookWithSecret, `${pathOf(id)}/rotate_secret`, body))
      }),
    )

  apiCommand(webhooks, 'deliveries', 'show deliveries and their errors')
    .argument('<id>', 'wh_…')
    .option('--limit <number>', 'how many', wholeNumber(1), 20)
    .option('--status <status>', `only one of ${DELIVERY_STATUSES.join(', ')}`)
    .action((id: string, flags: DeliveriesFlags) => listDeliveries(shell, id, flags))

  apiCommand(webhooks, 'test', 'send a webhook an event of the type webhook.test')
    .argument('<id>', 'wh_…')
    .action((id: string, flags: ApiFlags) =>
      withApi(shell, flags, async ({ client }) => {
        const event = await client.post(EventObject, `${pathOf(id)}/test`, {})
        if (flags.json) printJson(stdout, event)
        else
          writeLine(
            stderr,
            `${event.id} is sent; "offpeak webhooks deliveries ${id}" shows whether it arrived.`,
          )
      }),
    )

  examples(
    apiCommand(webhooks, 'replay', 'send an event again, or every event whose delivery failed')
      .argument('<id>', 'wh_…')
      .option('--event <id>', 'this event, whether it was delivered or not')
      .action((id: string, flags: ReplayFlags) => replay(shell, id, flags)),
    'offpeak webhooks replay wh_01k0…',
    'offpeak webhooks replay wh_01k0… --event evt_01k0…',
  )
}

function onOne(
  shell: Shell,
  webhooks: Command,
  name: string,
  description: string,
  call: (client: ApiClient, path: string) => Promise<WebhookObject>,
): void {
  apiCommand(webhooks, name, description)
    .argument('<id>', 'wh_…')
    .action((id: string, flags: ApiFlags) =>
      withApi(shell, flags, async ({ client }) => {
        const webhook = await call(client, pathOf(id))
        if (flags.json) printJson(shell.terminal.stdout, webhook)
        else printFields(shell.terminal.stdout, webhook)
      }),
    )
}

async function listWebhooks(shell: Shell, flags: ApiFlags & { limit: number }): Promise<void> {
  const { stdout } = shell.terminal
  await withApi(shell, flags, async ({ client }) => {
    const found = await client.list(WebhookObject, '/v1/webhooks', flags.limit)
    if (flags.json) return printJson(stdout, found)
    printTable(
      stdout,
      ['ID', 'ENABLED', 'CREATED', 'EVENTS', 'URL'],
      found.map(({ id, enabled, created, event_types, url }) => [
        id,
        enabled ? 'yes' : 'no',
        humanTime(created),
        event_types === null ? 'all' : event_types.join(','),
        url,
      ]),
    )
  })
}

async function listDeliveries(shell: Shell, id: string, flags: DeliveriesFlags): Promise<void> {
  const { stdout } = shell.terminal
  const query = { status: flags.status }
  await withApi(shell, flags, async ({ client }) => {
    const found = await client.list(DeliveryObject, `${pathOf(id)}/deliveries`, flags.limit, query)
    if (flags.json) return printJson(stdout, found)
    printTable(
      stdout,
      ['EVENT', 'TYPE', 'STATUS', 'ATTEMPTS', 'LAST', 'NEXT', 'ERROR'],
      found.map((delivery) => [
        delivery.event_id,
        delivery.event_type,
        delivery.status,
        String(delivery.attempts),
        humanTime(delivery.last_attempt_at),
        humanTime(delivery.next_attempt_at),
        delivery.last_error ?? '-',
      ]),
    )
  })
}

async function replay(shell: Shell, id: string, { event, ...flags }: ReplayFlags): Promise<void> {
  const { stdout, stderr } = shell.terminal
  await withApi(shell, flags, async ({ client }) => {
    const body = event === undefined ? {} : { event_id: event }
    let queued = 0
    let answer: ReplayedDeliveries
    do {
      answer = await client.post(ReplayedDeliveries, `${pathOf(id)}/replay`, body)
      queued += answer.queued
    } while (answer.has_more && answer.queued > 0)
    if (flags.json) printJson(stdout, { ...answer, queued })
    else writeLine(stderr, `${counted(queued, 'event')} will be sent again.`)
  })
}

function showSecret(shell: Shell, flags: ApiFlags, webhook: WebhookWithSecret): void {
  const { stdout, stderr } = shell.terminal
  if (flags.json) {
    printJson(stdout, webhook)
    return
  }
  printFields(stdout, webhook)
  writeLine(
    stderr,
    'The secret is shown only once. Give it to the receiver, which verifies signatures with it.',
  )
}

function eventTypes(text: string): string[] {
  return commaList(text).map((type) => {
    if (isSubscribedType(type)) return type
    throw new InvalidArgumentError(`The types are ${EVENT_TYPES.join(', ')}.`)
  })
}

function pathOf(id: string): string {
  return `/v1/webhooks/${encodeURIComponent(id)}`
}
