// Webhooks with their deliveries, and the events that they are told of.
import { useEffect, useState } from 'preact/hooks'
import { EVENT_TYPES } from '../../domain/event.ts'
import type {
  DeliveryObject,
  EventObject,
  ReplayedDeliveries,
  WebhookObject,
  WebhookWithSecret,
} from '../../wire/event.ts'
import type { List } from '../../wire/list.ts'
import { get, post, remove } from '../api.ts'
import { every } from '../browser-clock.ts'
import { h, type View } from '../h.ts'
import { type MessageKey, t } from '../i18n.ts'
import { Button } from '../parts/button.ts'
import { ConfirmDialog, Dialog, SecretDialog } from '../parts/dialog.ts'
import { CheckField, TextField } from '../parts/field.ts'
import { Empty, FailureNotice, Loading, Notice } from '../parts/notice.ts'
import { Page, Section } from '../parts/page.ts'
import { Badge } from '../parts/status.ts'
import { type Column, Table } from '../parts/table.ts'
import { visibleText } from '../parts/text.ts'
import { Time } from '../parts/time.ts'
import { useAction, useResource } from '../resource.ts'
import { href } from '../router.ts'
import { may } from '../session.ts'

export function Webhooks(): View {
  const webhooks = useResource(
    (signal) => get<List<WebhookObject>>('/v1/webhooks', { limit: 100 }, { signal }),
    [],
  )
  const [creating, create] = useState(false)
  const [secret, setSecret] = useState<string | null>(null)
  const data = webhooks.data?.data
  return h(
    Page,
    {
      title: t('webhooks.title'),
      lead: t('webhooks.lead'),
      actions: may('webhooks:write')
        ? h(Button, { label: t('webhooks.new'), icon: 'plus', kind: 'primary', onClick: () => create(true) })
        : null,
    },
    [
      h(FailureNotice, { failure: webhooks.failure, retry: webhooks.reload }),
      !data
        ? webhooks.failure
          ? null
          : h(Loading, {})
        : data.length === 0
          ? h(Empty, { title: t('webhooks.none') }, h('p', null, t('webhooks.noneText')))
          : data.map((webhook) =>
              h(Webhook, { webhook, reload: webhooks.reload, onSecret: setSecret, key: webhook.id }),
            ),
      may('events:read') ? h(Events, null) : null,
      creating
        ? h(CreateDialog, {
            onClose: () => create(false),
            onCreated: (made) => {
              create(false)
              setSecret(made.secret)
              webhooks.reload()
            },
          })
        : null,
      secret === null
        ? null
        : h(SecretDialog, {
            title: t('webhooks.secret'),
            text: t('webhooks.secretText'),
            secret,
            onClose: () => setSecret(null),
          }),
    ],
  )
}

/** How often a delivery that is under way is asked for. */
const PENDING_MS = 1_500

const TONES = { delivered: 'good', failed: 'bad', pending: 'idle' } as const

function Webhook({
  webhook,
  reload,
  onSecret,
}: {
  webhook: WebhookObject
  reload: () => void
  onSecret: (secret: string) => void
}): View {
  const path = `/v1/webhooks/${webhook.id}`
  const deliveries = useResource(
    (signal) => get<List<DeliveryObject>>(`${path}/deliveries`, { limit: 10 }, { signal }),
    [webhook.id],
  )
  const action = useAction()
  const [removing, askToRemove] = useState(false)
  const [queued, setQueued] = useState<number | null>(null)
  const run = (act: () => Promise<void>): void => void action.run(act)
  const replay = (event_id?: string): void =>
    run(async () => {
      setQueued((await post<ReplayedDeliveries>(`${path}/replay`, event_id ? { event_id } : {})).queued)
      deliveries.reload()
    })
  const rows = deliveries.data?.data ?? []
  const isPending = rows.some(({ status }) => status === 'pending')
  useEffect(() => (isPending ? every(PENDING_MS, deliveries.reload) : undefined), [isPending])
  const columns: Column<DeliveryObject>[] = [
    {
      title: t('webhooks.event'),
      main: true,
      cell: ({ event_type, event_id }) => [
        h('code', { class: 'code' }, event_type),
        h('div', { class: 'muted small mono' }, event_id),
      ],
    },
    {
      title: t('batch.status'),
      cell: ({ status, last_error }) => [
        h(Badge, { tone: TONES[status], text: t(`delivery.${status}` satisfies MessageKey) }),
        last_error ? h('div', { class: 'muted small' }, visibleText(last_error)) : null,
      ],
    },
    {
      title: t('line.attempts'),
      align: 'end',
      cell: ({ attempts, last_status_code }) =>
        `${attempts}${last_status_code === null ? '' : ` · ${last_status_code}`}`,
    },
    {
      title: t('audit.when'),
      align: 'end',
      cell: ({ last_attempt_at, created }) => h(Time, { at: last_attempt_at ?? created, short: true }),
    },
    ...(may('webhooks:write')
      ? [
          {
            title: t('webhooks.replay'),
            quiet: true,
            align: 'end' as const,
            cell: ({ event_id }: DeliveryObject) =>
              h(
                'button',
                { type: 'button', class: 'link', onClick: () => replay(event_id) },
                t('webhooks.replay'),
              ),
          },
        ]
      : []),
  ]
  const link = (label: string, onClick: () => void): View =>
    h('button', { type: 'button', class: 'link', disabled: action.busy, onClick }, label)
  return h('section', { class: 'card stack' }, [
    h('div', { class: 'section-head' }, [
      h('div', { class: 'grow' }, [
        h('h2', { class: 'mono' }, visibleText(webhook.url)),
        h('div', { class: 'muted small' }, [
          webhook.description ? [visibleText(webhook.description), ' · '] : null,
          webhook.event_types ? webhook.event_types.join(', ') : t('webhooks.all'),
        ]),
      ]),
      h(Badge, {
        tone: webhook.enabled ? 'good' : 'idle',
        text: t(webhook.enabled ? 'webhooks.enabled' : 'webhooks.disabled'),
      }),
    ]),
    webhook.disabled_reason ? h(Notice, { tone: 'warn' }, visibleText(webhook.disabled_reason)) : null,
    may('webhooks:write')
      ? h('div', { class: 'row' }, [
          webhook.enabled
            ? link(t('webhooks.test'), () =>
                run(async () => {
                  await post(`${path}/test`)
                  deliveries.reload()
                }),
              )
            : null,
          link(t('webhooks.replayFailed'), () => replay()),
          link(t(webhook.enabled ? 'webhooks.disable' : 'webhooks.enable'), () =>
            run(async () => {
              await post(path, { enabled: !webhook.enabled })
              reload()
            }),
          ),
          link(t('webhooks.rotate'), () =>
            run(async () => onSecret((await post<WebhookWithSecret>(`${path}/rotate_secret`)).secret)),
          ),
          link(t('remove'), () => askToRemove(true)),
          queued === null
            ? null
            : h('span', { class: 'muted', role: 'status' }, t('webhooks.queued', { n: queued })),
        ])
      : null,
    h(FailureNotice, { failure: action.failure ?? deliveries.failure }),
    rows.length === 0
      ? h('p', { class: 'muted small' }, t('webhooks.noDeliveries'))
      : h(Table<DeliveryObject>, { label: t('webhooks.deliveries'), columns, rows, keyOf: ({ id }) => id }),
    removing
      ? h(ConfirmDialog, {
          title: t('webhooks.removeTitle'),
          text: webhook.url,
          label: t('remove'),
          onClose: () => askToRemove(false),
          act: async () => {
            await remove(path)
            reload()
          },
        })
      : null,
  ])
}

function CreateDialog({
  onClose,
  onCreated,
}: {
  onClose: () => void
  onCreated: (webhook: WebhookWithSecret) => void
}): View {
  const [url, setUrl] = useState('')
  const [description, setDescription] = useState('')
  const [types, setTypes] = useState<readonly string[]>(EVENT_TYPES)
  const action = useAction()
  const create = (): void =>
    void action.run(async () => {
      const event_types = types.length === EVENT_TYPES.length ? null : types
      onCreated(
        await post<WebhookWithSecret>('/v1/webhooks', {
          url: url.trim(),
          event_types,
          ...(description.trim() === '' ? {} : { description: description.trim() }),
        }),
      )
    })
  return h(
    Dialog,
    {
      title: t('webhooks.new'),
      onClose,
      onSubmit: create,
      foot: [
        h(Button, { label: t('cancel'), onClick: onClose }),
        h(Button, {
          label: t('webhooks.create'),
          kind: 'primary',
          submit: true,
          busy: action.busy,
          disabled: types.length === 0,
        }),
      ],
    },
    [
      h(TextField, {
        label: 'URL',
        type: 'url',
        value: url,
        onInput: setUrl,
        required: true,
        placeholder: 'https://example.com/offpeak',
        autoFocus: true,
      }),
      h(TextField, { label: t('limits.description'), value: description, onInput: setDescription }),
      h('fieldset', { class: 'fieldset' }, [
        h('legend', { class: 'legend' }, t('webhooks.events')),
        ...EVENT_TYPES.map((type) =>
          h(CheckField, {
            label: type,
            checked: types.includes(type),
            onInput: (checked) =>
              setTypes(EVENT_TYPES.filter((other) => (other === type ? checked : types.includes(other)))),
          }),
        ),
      ]),
      h(FailureNotice, { failure: action.failure }),
    ],
  )
}

function Events(): View {
  const events = useResource((signal) => get<List<EventObject>>('/v1/events', { limit: 20 }, { signal }), [])
  const columns: Column<EventObject>[] = [
    {
      title: t('webhooks.event'),
      main: true,
      cell: ({ type, id }) => [
        h('code', { class: 'code' }, type),
        h('div', { class: 'muted small mono' }, id),
      ],
    },
    {
      title: t('webhooks.about'),
      cell: ({ data }) =>
        typeof data.batch_id === 'string'
          ? h('a', { class: 'mono', href: href(`/batches/${data.batch_id}`) }, data.batch_id)
          : h('span', { class: 'mono' }, visibleText(String(data.entity ?? data.limit_id ?? ''))),
    },
    { title: t('audit.when'), align: 'end', cell: ({ created }) => h(Time, { at: created, short: true }) },
  ]
  const rows = events.data?.data ?? []
  return h(Section, { title: t('webhooks.events') }, [
    h(FailureNotice, { failure: events.failure, retry: events.reload }),
    events.data && rows.length === 0 ? h('p', { class: 'muted' }, t('webhooks.noEvents')) : null,
    rows.length > 0
      ? h(Table<EventObject>, { label: t('webhooks.events'), columns, rows, keyOf: ({ id }) => id })
      : null,
  ])
}
