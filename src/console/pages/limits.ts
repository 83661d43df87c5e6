// Spending limits: how much of each is spent, when it resets, and the forms that make, change and remove one.
import { useState } from 'preact/hooks'
import type { CreateLimit, LimitObject } from '../../wire/limit.ts'
import type { List } from '../../wire/list.ts'
import type { UsageObject } from '../../wire/usage.ts'
import { get, post, remove } from '../api.ts'
import { now } from '../browser-clock.ts'
import { compact, percent, usd } from '../format.ts'
import { h, type View } from '../h.ts'
import { type MessageKey, t } from '../i18n.ts'
import { Button } from '../parts/button.ts'
import { ConfirmDialog, Dialog } from '../parts/dialog.ts'
import { SelectField, TextField } from '../parts/field.ts'
import { Empty, FailureNotice, Loading, Notice } from '../parts/notice.ts'
import { Page } from '../parts/page.ts'
import { visibleText } from '../parts/text.ts'
import { Time } from '../parts/time.ts'
import { useAction, useResource } from '../resource.ts'
import { may } from '../session.ts'

type Spent = Readonly<Record<LimitObject['window'], UsageObject>>

/** The first day of the window and the end of it, by the UTC calendar. */
function windowOf(window: LimitObject['window']): { start: string; end: number } {
  const date = new Date(now())
  const [year, month, day] = [date.getUTCFullYear(), date.getUTCMonth(), date.getUTCDate()]
  const start = Date.UTC(year, month, window === 'month' ? 1 : day)
  const end = window === 'month' ? Date.UTC(year, month + 1, 1) : Date.UTC(year, month, day + 1)
  return { start: new Date(start).toISOString().slice(0, 10), end: end / 1000 }
}

async function readSpent(signal: AbortSignal): Promise<Spent> {
  const read = (window: LimitObject['window']): Promise<UsageObject> =>
    get('/v1/usage/entities', { start: windowOf(window).start, group_by: 'entity,entity_type' }, { signal })
  const [day, month] = await Promise.all([read('day'), read('month')])
  return { day, month }
}

export function Limits(): View {
  const limits = useResource((signal) => get<List<LimitObject>>('/v1/limits', { limit: 100 }, { signal }), [])
  const spent = useResource(readSpent, [])
  const [edited, edit] = useState<LimitObject | 'new' | null>(null)
  const [removed, askToRemove] = useState<LimitObject | null>(null)
  const [unpriced, setUnpriced] = useState<readonly string[]>([])
  const done = (): void => {
    edit(null)
    askToRemove(null)
    limits.reload()
  }
  const create = may('limits:read')
    ? h(Button, { label: t('limits.new'), icon: 'plus', kind: 'primary', onClick: () => edit('new') })
    : null
  const data = limits.data?.data
  return h(Page, { title: t('limits.title'), lead: t('limits.lead'), actions: create }, [
    h(FailureNotice, { failure: limits.failure ?? spent.failure, retry: limits.reload }),
    unpriced.length === 0
      ? null
      : h(Notice, { tone: 'warn' }, t('limits.unpriced', { models: unpriced.join(', ') })),
    !data
      ? limits.failure
        ? null
        : h(Loading, {})
      : data.length === 0
        ? h(Empty, { title: t('limits.none') }, h('p', null, t('limits.noneText')))
        : h(
            'ul',
            { class: 'limits' },
            data.map((limit) =>
              h(LimitCard, {
                limit,
                spent: spent.data,
                edit: () => edit(limit),
                remove: () => askToRemove(limit),
                key: limit.id,
              }),
            ),
          ),
    edited
      ? h(LimitDialog, {
          limit: edited === 'new' ? null : edited,
          onClose: () => edit(null),
          onDone: (saved) => {
            setUnpriced(saved.unpriced_models ?? [])
            done()
          },
        })
      : null,
    removed
      ? h(ConfirmDialog, {
          title: t('limits.removeTitle'),
          text: t('limits.removeText'),
          label: t('remove'),
          onClose: () => askToRemove(null),
          act: async () => {
            await remove(`/v1/limits/${removed.id}`)
            done()
          },
        })
      : null,
  ])
}

/** What has been spent of the amount, for each entity that the limit counts. */
function gauges(limit: LimitObject, spent: Spent): { name: string | null; value: number }[] {
  const usage = spent[limit.window]
  const value = (of: { cost_usd: number; total_tokens: number }): number =>
    limit.metric === 'cost_usd' ? of.cost_usd : of.total_tokens
  if (limit.scope === 'project') return [{ name: null, value: value(usage) }]
  const groups = usage.groups ?? []
  if (limit.scope === 'entity')
    return [
      {
        name: limit.entity ?? null,
        value: groups
          .filter(({ entity }) => entity === limit.entity)
          .reduce((sum, group) => sum + value(group), 0),
      },
    ]
  return groups
    .filter(({ entity_type }) => entity_type === limit.entity_type)
    .map((group) => ({ name: group.entity ?? null, value: value(group) }))
    .sort((a, b) => b.value - a.value)
}

const SHOWN = 6

function LimitCard({
  limit,
  spent,
  edit,
  remove,
}: {
  limit: LimitObject
  spent: Spent | null
  edit: () => void
  remove: () => void
}): View {
  const show = (value: number): string =>
    limit.metric === 'cost_usd' ? usd(value) : t('limits.tokens', { n: compact(value) })
  const all = spent ? gauges(limit, spent) : []
  const name = limit.entity ?? limit.entity_type ?? t('limits.project')
  return h('li', { class: 'card limit' }, [
    h('div', { class: 'section-head' }, [
      h('div', null, [
        h('h2', null, [limit.scope === 'entity_type' ? `${t('limits.each')} ` : '', visibleText(name)]),
        h('div', { class: 'muted small' }, [
          t(`limits.${limit.window}` satisfies MessageKey, { amount: show(limit.amount) }),
          limit.action === 'notify' ? ` · ${t('limits.notify')}` : '',
        ]),
      ]),
      may('limits:write')
        ? h('div', { class: 'row' }, [
            h('button', { type: 'button', class: 'link', onClick: edit }, t('change')),
            h('button', { type: 'button', class: 'link danger', onClick: remove }, t('remove')),
          ])
        : null,
    ]),
    all.length === 0 && spent ? h('p', { class: 'muted small' }, t('limits.nobody')) : null,
    ...all
      .slice(0, SHOWN)
      .map(({ name, value }) =>
        h(Gauge, { name: limit.scope === 'entity_type' ? name : null, value, limit, show }),
      ),
    all.length > SHOWN ? h('p', { class: 'muted small' }, t('limits.more', { n: all.length - SHOWN })) : null,
    h('div', { class: 'muted small' }, [
      t('limits.resets'),
      ' ',
      h(Time, { at: windowOf(limit.window).end, short: true }),
    ]),
    limit.description ? h('p', { class: 'muted' }, visibleText(limit.description)) : null,
  ])
}

function Gauge({
  name,
  value,
  limit,
  show,
}: {
  name: string | null
  value: number
  limit: LimitObject
  show: (value: number) => string
}): View {
  const share = limit.amount === 0 ? 1 : value / limit.amount
  const warned = limit.notify_at.some((fraction) => share >= fraction)
  const tone = share >= 1 ? 'bad' : warned ? 'warn' : 'info'
  return h('div', { class: `gauge ${tone}` }, [
    h('div', { class: 'progress-line' }, [
      name ? h('span', { class: 'gauge-name' }, visibleText(name)) : null,
      h('span', null, show(value)),
      h('span', { class: 'muted push' }, percent(Math.min(value, limit.amount), limit.amount)),
    ]),
    h(
      'div',
      {
        class: 'gauge-track',
        role: 'meter',
        'aria-label': t('limits.spent', { name: name ?? limit.entity ?? t('limits.project') }),
        'aria-valuemin': 0,
        'aria-valuemax': limit.amount,
        'aria-valuenow': Math.min(value, limit.amount),
      },
      [
        h('div', { class: 'gauge-fill', style: { width: `${Math.min(1, share) * 100}%` } }),
        ...limit.notify_at.map((fraction) =>
          h('i', { style: { left: `${fraction * 100}%` }, title: percent(fraction, 1) }),
        ),
      ],
    ),
  ])
}

function LimitDialog({
  limit,
  onClose,
  onDone,
}: {
  limit: LimitObject | null
  onClose: () => void
  onDone: (saved: LimitObject) => void
}): View {
  const [scope, setScope] = useState<string>(limit?.scope ?? 'entity')
  const [name, setName] = useState(limit?.entity ?? limit?.entity_type ?? '')
  const [metric, setMetric] = useState<string>(limit?.metric ?? 'cost_usd')
  const [window, setWindow] = useState<string>(limit?.window ?? 'month')
  const [amount, setAmount] = useState(limit ? String(limit.amount) : '')
  const [action, setAction] = useState<string>(limit?.action ?? 'block')
  const [notify, setNotify] = useState(
    (limit?.notify_at ?? [0.8]).map((fraction) => fraction * 100).join(', '),
  )
  const [description, setDescription] = useState(limit?.description ?? '')
  const saving = useAction()
  const save = async (): Promise<void> => {
    const changed = {
      amount: Number(amount),
      action,
      notify_at: notify
        .split(/[\s,;%]+/)
        .filter((text) => text !== '')
        .map((text) => Number(text) / 100),
      description: description.trim() === '' ? null : description.trim(),
    }
    const fixed = { scope, metric, window, ...(scope === 'project' ? {} : { [scope]: name.trim() }) }
    await saving.run(async () => {
      const order = limit ? changed : ({ ...fixed, ...changed } as CreateLimit)
      onDone(await post<LimitObject>(limit ? `/v1/limits/${limit.id}` : '/v1/limits', order))
    })
  }
  const option = (value: string, key: MessageKey): readonly [string, string] => [value, t(key)]
  return h(
    Dialog,
    {
      title: t(limit ? 'limits.changeTitle' : 'limits.new'),
      onClose,
      onSubmit: () => void save(),
      foot: [
        h(Button, { label: t('cancel'), onClick: onClose }),
        h(Button, { label: t('save'), kind: 'primary', submit: true, busy: saving.busy }),
      ],
    },
    [
      limit
        ? null
        : h('div', { class: 'form-row' }, [
            h(SelectField, {
              label: t('limits.scope'),
              value: scope,
              options: [
                option('entity', 'limits.scope.entity'),
                option('entity_type', 'limits.scope.entity_type'),
                option('project', 'limits.scope.project'),
              ],
              onInput: setScope,
            }),
            scope === 'project'
              ? null
              : h(TextField, {
                  label: t(scope === 'entity' ? 'line.entity' : 'usage.by.entity_type'),
                  value: name,
                  onInput: setName,
                  required: true,
                  placeholder: scope === 'entity' ? 'user:42' : 'user',
                }),
          ]),
      limit
        ? null
        : h('div', { class: 'form-row' }, [
            h(SelectField, {
              label: t('limits.metric'),
              value: metric,
              options: [option('cost_usd', 'limits.metric.cost_usd'), option('tokens', 'line.usage')],
              onInput: setMetric,
            }),
            h(SelectField, {
              label: t('limits.window'),
              value: window,
              options: [option('day', 'limits.window.day'), option('month', 'limits.window.month')],
              onInput: setWindow,
            }),
          ]),
      h('div', { class: 'form-row' }, [
        h(TextField, {
          label: t('limits.amount'),
          type: 'number',
          min: 0,
          step: 'any',
          value: amount,
          onInput: setAmount,
          required: true,
        }),
        h(SelectField, {
          label: t('limits.action'),
          value: action,
          options: [option('block', 'limits.action.block'), option('notify', 'limits.notify')],
          onInput: setAction,
        }),
      ]),
      h(TextField, {
        label: t('limits.notifyAt'),
        value: notify,
        onInput: setNotify,
        hint: t('limits.notifyHint'),
      }),
      h(TextField, {
        label: t('limits.description'),
        value: description,
        onInput: setDescription,
        hint: t('limits.descriptionHint'),
      }),
      h(FailureNotice, { failure: saving.failure }),
    ],
  )
}
