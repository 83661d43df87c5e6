// The page of webhooks lists them with their deliveries, and the project's events.
import type { VNode } from 'preact'
import { useMemo, useState } from 'preact/hooks'
import { DEFAULT_EVENT_TYPES, EVENT_TYPES, type EventType } from '../../domain/event.ts'
import type {
  DeliveryObject,
  EventObject,
  ReplayedDeliveries,
  WebhookObject,
  WebhookWithSecret,
} from '../../wire/event.ts'
import type { List } from '../../wire/shape.ts'
import { post } from '../api.ts'
import { shortId } from '../format.ts'
import { t } from '../i18n.ts'
import { Button, Entity, TextButton } from '../parts/button.tsx'
import { askToRemove, FormDialog, openDialog, SecretDialog } from '../parts/dialog.tsx'
import { CheckList, TextField, useFields } from '../parts/field.tsx'
import { PagedTable } from '../parts/long-table.tsx'
import { Empty, FailureNotice, Loaded, Notice } from '../parts/notice.tsx'
import { Page, Section, Time } from '../parts/page.tsx'
import { Badge } from '../parts/status.tsx'
import { type Column, Table } from '../parts/table.tsx'
import { lastFailed } from '../problems.ts'
import { useAction, useAll, useGet, usePages } from '../resource.ts'
import { href } from '../router.ts'
import { may } from '../session.ts'

export function Webhooks(): VNode {
  const webhooks = useAll<WebhookObject>('/v1/webhooks')
  const create = (): void => openDialog(<CreateDialog reload={webhooks.reload} />)
  return (
    <Page
      title={t('webhooks.title')}
      lead={t('webhooks.lead')}
      actions={
        may('webhooks:write') ? (
          <Button label={t('webhooks.new')} icon="new" kind="primary" onClick={create} />
        ) : null
      }
    >
      <Loaded resource={webhooks}>
        {(list) =>
          list.length === 0 ? (
            <Empty title={t('webhooks.none')} text={t('webhooks.noneText')} />
          ) : (
            list.map((webhook) => <Webhook webhook={webhook} reload={webhooks.reload} key={webhook.id} />)
          )
        }
      </Loaded>
      {may('events:read') ? <Events /> : null}
    </Page>
  )
}

const TONES = { delivered: 'good', failed: 'bad', pending: 'idle' } as const

function Webhook({ webhook, reload }: { webhook: WebhookObject; reload: () => void }): VNode {
  const path = `/v1/webhooks/${webhook.id}`
  const deliveries = useGet<List<DeliveryObject>>(`${path}/deliveries`, { limit: 10 })
  const action = useAction()
  const [queued, setQueued] = useState<number | null>(null)
  const run = (act: () => Promise<void>): void => void action.run(act)
  const replay = (event_id?: string): void =>
    run(async () => {
      setQueued((await post<ReplayedDeliveries>(`${path}/replay`, event_id ? { event_id } : {})).queued)
      deliveries.reload()
    })
  const rows = deliveries.data?.data ?? []
  const failing = lastFailed(rows) !== null
  const columns: Column<DeliveryObject>[] = [
    {
      title: t('webhooks.event'),
      main: true,
      cell: ({ event_type, event_id }) => [
        <code class="code">{event_type}</code>,
        <div class="muted small mono minor">{event_id}</div>,
      ],
    },
    {
      title: t('batch.status'),
      cell: ({ status, last_error, next_attempt_at }) => [
        <Badge
          tone={status === 'pending' && last_error ? 'warn' : TONES[status]}
          text={t(`delivery.${status === 'pending' && last_error ? 'retried' : status}`)}
        />,
        last_error ? <div class="muted small">{last_error}</div> : null,
        last_error && next_attempt_at !== null ? (
          <div class="muted small minor">
            {t('webhooks.next')} <Time at={next_attempt_at} short />
          </div>
        ) : null,
      ],
    },
    {
      title: t('line.attempts'),
      minor: true,
      align: 'end',
      cell: ({ attempts, last_status_code }) =>
        `${attempts}${last_status_code === null ? '' : ` · ${last_status_code}`}`,
    },
    {
      title: t('audit.when'),
      minor: true,
      align: 'end',
      cell: ({ last_attempt_at, created }) => <Time at={last_attempt_at ?? created} short />,
    },
    {
      title: t('webhooks.replay'),
      quiet: true,
      align: 'end',
      cell: ({ event_id }) =>
        may('webhooks:write') ? (
          <TextButton label={t('webhooks.replay')} onClick={() => replay(event_id)} />
        ) : null,
    },
  ]
  const link = (label: string, onClick: () => void): VNode => (
    <TextButton label={label} disabled={action.busy} onClick={onClick} />
  )
  return (
    <section class="card stack">
      <div class="section-head">
        <div class="grow">
          <h2 class="mono">{webhook.url}</h2>
          <div class="muted small">
            {webhook.description ? `${webhook.description} · ` : null}
            {webhook.event_types ? webhook.event_types.join(', ') : t('webhooks.all')}
          </div>
        </div>
        <Badge
          tone={!webhook.enabled ? 'idle' : failing ? 'bad' : 'good'}
          text={t(`webhooks.${!webhook.enabled ? 'disabled' : failing ? 'failing' : 'enabled'}`)}
        />
      </div>
      {webhook.disabled_reason ? <Notice tone="warn">{webhook.disabled_reason}</Notice> : null}
      {may('webhooks:write') ? (
        <div class="row">
          {webhook.enabled
            ? link(t('webhooks.test'), () =>
                run(async () => {
                  await post(`${path}/test`)
                  deliveries.reload()
                }),
              )
            : null}
          {link(t('webhooks.replayFailed'), () => replay())}
          {link(t(webhook.enabled ? 'webhooks.disable' : 'webhooks.enable'), () =>
            run(async () => {
              await post(path, { enabled: !webhook.enabled })
              reload()
            }),
          )}
          {link(t('webhooks.rotate'), () =>
            run(async () => openDialog(<SigningSecret of={await post(`${path}/rotate_secret`)} />)),
          )}
          {link(t('remove'), () =>
            askToRemove(
              path,
              { title: t('webhooks.removeTitle'), label: t('remove'), text: webhook.url },
              reload,
            ),
          )}
          {queued === null ? null : (
            <span class="muted" role="status">
              {t('webhooks.queued', { n: queued })}
            </span>
          )}
        </div>
      ) : null}
      <FailureNotice failure={action.failure ?? deliveries.failure} />
      {rows.length === 0 ? (
        <p class="muted small">{t('webhooks.noDeliveries')}</p>
      ) : (
        <Table label={t('webhooks.deliveries')} columns={columns} rows={rows} />
      )}
    </section>
  )
}

function SigningSecret({ of: { secret } }: { of: WebhookWithSecret }): VNode {
  return <SecretDialog title={t('webhooks.secret')} text={t('webhooks.secretText')} secret={secret} />
}

function CreateDialog({ reload }: { reload: () => void }): VNode {
  const { values, bind } = useFields({ url: '', description: '' })
  const [types, setTypes] = useState<readonly EventType[]>(DEFAULT_EVENT_TYPES)
  const create = async (): Promise<VNode> => {
    const description = values.description.trim()
    const event_types = types.join() === DEFAULT_EVENT_TYPES.join() ? null : types
    const made = await post<WebhookWithSecret>('/v1/webhooks', {
      url: values.url.trim(),
      event_types,
      ...(description === '' ? {} : { description }),
    })
    reload()
    return <SigningSecret of={made} />
  }
  return (
    <FormDialog
      title={t('webhooks.new')}
      label={t('webhooks.create')}
      disabled={types.length === 0}
      act={create}
    >
      <TextField
        label="URL"
        type="url"
        {...bind('url')}
        required
        placeholder="https://example.com/offpeak"
        autoFocus
      />
      <TextField label={t('limits.description')} {...bind('description')} />
      <CheckList label={t('webhooks.events')} options={EVENT_TYPES} chosen={types} choose={setTypes} />
    </FormDialog>
  )
}

function Events(): VNode {
  const pages = usePages<EventObject>('/v1/events', {})
  const columns = useMemo(EVENT_COLUMNS, [])
  return (
    <Section title={t('webhooks.events')}>
      <PagedTable<EventObject>
        pages={pages}
        label={t('webhooks.events')}
        columns={columns}
        none={t('webhooks.noEvents')}
        cards
      />
    </Section>
  )
}

const EVENT_COLUMNS = (): Column<EventObject>[] => [
  {
    title: t('webhooks.event'),
    main: true,
    cell: ({ type, id }) => [
      <code class="code">{type}</code>,
      <div class="muted small mono minor">{id}</div>,
    ],
  },
  {
    title: t('webhooks.about'),
    cell: ({ data }) =>
      typeof data.batch_id === 'string' ? (
        <a class="mono" href={href(`/batches/${data.batch_id}`)} title={data.batch_id}>
          {shortId(data.batch_id)}
        </a>
      ) : (
        <span class="mono">
          {typeof data.entity === 'string' ? <Entity name={data.entity} /> : String(data.limit_id ?? '')}
        </span>
      ),
  },
  { title: t('audit.when'), align: 'end', cell: ({ created }) => <Time at={created} short /> },
]
