// webhooks: manage webhooks and show their deliveries. events: lists the events of a project.
import type { Command } from 'commander'
import { EVENT_TYPES } from '../../domain/event.ts'
import {
  DELIVERY_STATUSES,
  DeliveryObject,
  EventObject,
  ReplayedDeliveries,
  WebhookObject,
  WebhookWithSecret,
} from '../../wire/event.ts'
import { type ApiClient, pathOf } from '../client/client.ts'
import { addCall, addList, addResource } from '../client/object-commands.ts'
import type { JsonFlags, Shell } from '../shell.ts'
import { examples, someOf, wholeNumber } from '../terminal/option-values.ts'
import { counted, humanTime, printFields, writeLine } from '../terminal/terminal.ts'

interface CreateFlags extends JsonFlags {
  events?: string[]
  description?: string
}

export function addWebhooks(program: Command, shell: Shell): void {
  const webhooks = program.command('webhooks').description('send signed events to a URL, and show deliveries')

  const create = addCall(shell, webhooks, 'create', {
    description: 'create a webhook that sends events to a URL',
    argument: ['url', 'https://…'],
    call: (url, { events, description }: CreateFlags) => {
      const body = { url, event_types: events ?? null, description: description ?? null }
      return (client) => client.postOnce(WebhookWithSecret, '/v1/webhooks', body)
    },
    show: showSecret,
  })
  create
    .option(
      '--events <list>',
      `some of ${EVENT_TYPES.join(', ')} (default: all)`,
      someOf(EVENT_TYPES, 'The types are'),
    )
    .option('--description <text>', 'free text')
  examples(
    create,
    'offpeak webhooks create https://example.com/offpeak --events batch.completed,batch.failed',
  )

  addResource(shell, webhooks, {
    description: 'show webhooks, newest first',
    kind: 'webhooks',
    one: ['a webhook', 'wh_…'],
    deletion: 'delete a webhook and its deliveries',
    shape: WebhookObject,
    columns: {
      ID: ({ id }) => id,
      ENABLED: ({ enabled }) => (enabled ? 'yes' : 'no'),
      CREATED: ({ created }) => humanTime(created),
      EVENTS: ({ event_types }) => (event_types === null ? 'all' : event_types.join(',')),
      URL: ({ url }) => url,
    },
  })

  for (const [name, description, enabled] of [
    ['disable', 'stop sending events to a webhook', false],
    ['enable', 'send new events to a webhook again', true],
  ] as const)
    addCall(shell, webhooks, name, {
      description,
      argument: 'wh_…',
      call: (id) => (client) => client.post(WebhookObject, pathOf('webhooks', id), { enabled }),
    })

  addCall(shell, webhooks, 'rotate', {
    description: 'replace the secret; for a while both secrets sign',
    argument: 'wh_…',
    call: (id, { overlap: overlap_seconds }: JsonFlags & { overlap?: number }) => {
      const path = `${pathOf('webhooks', id)}/rotate_secret`
      return (client) => client.postOnce(WebhookWithSecret, path, { overlap_seconds })
    },
    show: showSecret,
  }).option('--overlap <seconds>', 'how long both secrets sign (default: a day)', wholeNumber(0))

  addList(shell, webhooks, 'deliveries', {
    description: 'show deliveries and their errors',
    argument: 'wh_…',
    shape: DeliveryObject,
    path: (id) => `${pathOf('webhooks', id)}/deliveries`,
    filters: { status: ['--status <status>', `only one of ${DELIVERY_STATUSES.join(', ')}`] },
    columns: {
      EVENT: ({ event_id }) => event_id,
      TYPE: ({ event_type }) => event_type,
      STATUS: ({ status }) => status,
      ATTEMPTS: ({ attempts }) => String(attempts),
      LAST: ({ last_attempt_at }) => humanTime(last_attempt_at),
      NEXT: ({ next_attempt_at }) => humanTime(next_attempt_at),
      ERROR: ({ last_error }) => last_error ?? '-',
    },
  })

  addCall(shell, webhooks, 'test', {
    description: 'send a webhook an event of the type webhook.test',
    argument: 'wh_…',
    call: (id) => (client) => client.post(EventObject, `${pathOf('webhooks', id)}/test`, {}),
    show: ({ terminal }, event, id) =>
      writeLine(
        terminal.stderr,
        `${event.id} is sent; "offpeak webhooks deliveries ${id}" shows whether it arrived.`,
      ),
  })

  const replay = addCall(shell, webhooks, 'replay', {
    description: 'send an event again, or every event whose delivery failed',
    argument: 'wh_…',
    call:
      (id, { event }: JsonFlags & { event?: string }) =>
      (client) =>
        replayAll(client, `${pathOf('webhooks', id)}/replay`, event),
    show: ({ terminal }, { queued }) =>
      writeLine(terminal.stderr, `${counted(queued, 'event')} will be sent again.`),
  })
  replay.option('--event <id>', 'this event, whether it was delivered or not')
  examples(replay, 'offpeak webhooks replay wh_01k0…', 'offpeak webhooks replay wh_01k0… --event evt_01k0…')
}

export function addEvents(program: Command, shell: Shell): void {
  const events = program.command('events').description('show events of batches and limits')

  addResource(shell, events, {
    description: 'show events, newest first',
    kind: 'events',
    one: ['an event', 'evt_…'],
    shape: EventObject,
    filters: { type: ['--type <type>', `only one of ${EVENT_TYPES.join(', ')}`] },
    columns: {
      ID: ({ id }) => id,
      CREATED: ({ created }) => humanTime(created),
      TYPE: ({ type }) => type,
      SUBJECT: ({ data }) => subject(data),
    },
  })
}

async function replayAll(client: ApiClient, path: string, event_id?: string): Promise<ReplayedDeliveries> {
  let queued = 0
  let answer: ReplayedDeliveries
  do {
    answer = await client.post(ReplayedDeliveries, path, { event_id })
    queued += answer.queued
  } while (answer.has_more && answer.queued > 0)
  return { ...answer, queued }
}

function showSecret({ terminal }: Shell, webhook: WebhookWithSecret): void {
  printFields(terminal.stdout, webhook)
  writeLine(
    terminal.stderr,
    'The secret is shown only once. Give it to the receiver, which verifies signatures with it.',
  )
}

/** The subject of an event: the batch, or the limit and its entity. */
function subject({ batch_id, limit_id, entity }: Record<string, unknown>): string {
  return [batch_id ?? limit_id, entity].filter((part) => typeof part === 'string').join(' ') || '-'
}
