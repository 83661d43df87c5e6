// Spending limits: how much of each is spent, when it resets, and the forms that make, change and remove one.

import type { VNode } from 'preact'
import { useState } from 'preact/hooks'
import type { CreateLimit, LimitObject } from '../../wire/limit.ts'
import type { List } from '../../wire/list.ts'
import type { UsageObject } from '../../wire/usage.ts'
import { get, post, remove } from '../api.ts'
import { now } from '../browser-clock.ts'
import { compact, percent, usd } from '../format.ts'
import { type MessageKey, t } from '../i18n.ts'
import { Button } from '../parts/button.tsx'
import { FormDialog } from '../parts/dialog.tsx'
import { Entity } from '../parts/entity.tsx'
import { SelectField, TextField } from '../parts/field.tsx'
import { Loaded } from '../parts/loaded.tsx'
import { Empty, FailureNotice, Notice } from '../parts/notice.tsx'
import { Page } from '../parts/page.tsx'
import { Time } from '../parts/time.tsx'
import { useGet, useResource } from '../resource.ts'
import { may } from '../session.ts'

export type Spent = Readonly<Record<LimitObject['window'], UsageObject>>

/** The first day of the window and the end of it, by the UTC calendar. */
function windowOf(window: LimitObject['window']): { start: string; end: number } {
  const date = new Date(now())
  const [year, month, day] = [date.getUTCFullYear(), date.getUTCMonth(), date.getUTCDate()]
  const start = Date.UTC(year, month, window === 'month' ? 1 : day)
  const end = window === 'month' ? Date.UTC(year, month + 1, 1) : Date.UTC(year, month, day + 1)
  return { start: new Date(start).toISOString().slice(0, 10), end: end / 1000 }
}

export async function readSpent(signal: AbortSignal): Promise<Spent> {
  const read = (window: LimitObject['window']): Promise<UsageObject> =>
    get('/v1/usage/entities', { start: windowOf(window).start, group_by: 'entity,entity_type' }, { signal })
  const [day, month] = await Promise.all([read('day'), read('month')])
  return { day, month }
}

export function Limits(): VNode {
  const limits = useGet<List<LimitObject>>('/v1/limits', { limit: 100 })
  const spent = useResource(readSpent, [])
  const [edited, edit] = useState<LimitObject | 'new' | null>(null)
  const [removed, askToRemove] = useState<LimitObject | null>(null)
  const [unpriced, setUnpriced] = useState<readonly string[]>([])
  const create = may('limits:read') ? (
    <Button label={t('limits.new')} icon="new" kind="primary" onClick={() => edit('new')} />
  ) : null
  return (
    <Page title={t('limits.title')} lead={t('limits.lead')} actions={create}>
      <FailureNotice failure={spent.failure} retry={spent.reload} />
      {unpriced.length === 0 ? null : (
        <Notice tone="warn">{t('limits.unpriced', { models: unpriced.join(', ') })}</Notice>
      )}
      <Loaded resource={limits}>
        {({ data }) =>
          data.length === 0 ? (
            <Empty title={t('limits.none')}>
              <p>{t('limits.noneText')}</p>
            </Empty>
          ) : (
            <ul class="limits">
              {data.map((limit) => (
                <LimitCard
                  limit={limit}
                  spent={spent.data}
                  edit={() => edit(limit)}
                  remove={() => askToRemove(limit)}
                  key={limit.id}
                />
              ))}
            </ul>
          )
        }
      </Loaded>
      {edited ? (
        <LimitDialog
          limit={edited === 'new' ? null : edited}
          onClose={() => edit(null)}
          onDone={(saved) => {
            setUnpriced(saved.unpriced_models ?? [])
            limits.reload()
          }}
        />
      ) : null}
      {removed ? (
        <FormDialog
          danger
          title={t('limits.removeTitle')}
          label={t('remove')}
          onClose={() => askToRemove(null)}
          act={async () => {
            await remove(`/v1/limits/${removed.id}`)
            limits.reload()
          }}
        >
          <p>{t('limits.removeText')}</p>
        </FormDialog>
      ) : null}
    </Page>
  )
}

/** What has been spent of the amount, for each entity that the limit counts. */
export function gauges(limit: LimitObject, spent: Spent): { name: string | null; value: number }[] {
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

const shownIn =
  ({ metric }: LimitObject) =>
  (value: number): string =>
    metric === 'cost_usd' ? usd(value) : t('limits.tokens', { n: compact(value) })

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
}): VNode {
  const show = shownIn(limit)
  const all = spent ? gauges(limit, spent) : []
  const name = limit.entity ?? limit.entity_type ?? t('limits.project')
  return (
    <li class="card limit">
      <div class="section-head">
        <div>
          <h2>
            {limit.scope === 'entity_type' ? `${t('limits.each')} ` : ''}
            {limit.entity ? <Entity name={limit.entity} /> : name}
          </h2>
          <div class="muted small">
            {t(`limits.${limit.window}` satisfies MessageKey, { amount: show(limit.amount) })}
            {limit.action === 'notify' ? ` · ${t('limits.notify')}` : ''}
          </div>
        </div>
        {may('limits:write') ? (
          <div class="row">
            <button type="button" class="link" onClick={edit}>
              {t('change')}
            </button>
            <button type="button" class="link danger" onClick={remove}>
              {t('remove')}
            </button>
          </div>
        ) : null}
      </div>
      {all.length === 0 && spent ? <p class="muted small">{t('limits.nobody')}</p> : null}
      {all.slice(0, SHOWN).map(({ name, value }) => (
        <Gauge name={limit.scope === 'entity_type' ? name : null} value={value} limit={limit} />
      ))}
      {all.length > SHOWN ? <p class="muted small">{t('limits.more', { n: all.length - SHOWN })}</p> : null}
      <div class="muted small">
        {t('limits.resets')} <Time at={windowOf(limit.window).end} short />
      </div>
      {limit.description ? <p class="muted">{limit.description}</p> : null}
    </li>
  )
}

export function Gauge({
  name,
  value,
  limit,
}: {
  name: string | null
  value: number
  limit: LimitObject
}): VNode {
  const show = shownIn(limit)
  const share = limit.amount === 0 ? 1 : value / limit.amount
  const warned = limit.notify_at.some((fraction) => share >= fraction)
  const tone = share >= 1 ? 'bad' : warned ? 'warn' : 'info'
  return (
    <div class={`gauge ${tone}`}>
      <div class="progress-line">
        {name ? (
          <span class="gauge-name">
            <Entity name={name} />
          </span>
        ) : null}
        <span>{show(value)}</span>
        <span class="muted push">{percent(value, limit.amount)}</span>
      </div>
      <div
        class="gauge-track"
        role="meter"
        aria-label={t('limits.spent', { name: name ?? limit.entity ?? t('limits.project') })}
        aria-valuemin={0}
        aria-valuemax={limit.amount}
        aria-valuenow={Math.min(value, limit.amount)}
        aria-valuetext={`${show(value)}, ${percent(value, limit.amount)}`}
      >
        <div class="gauge-fill" style={{ width: `${Math.min(1, share) * 100}%` }} />
        {limit.notify_at.map((fraction) => (
          <i style={{ left: `${fraction * 100}%` }} title={percent(fraction, 1)} />
        ))}
      </div>
    </div>
  )
}

function LimitDialog({
  limit,
  onClose,
  onDone,
}: {
  limit: LimitObject | null
  onClose: () => void
  onDone: (saved: LimitObject) => void
}): VNode {
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
    const order = limit ? changed : ({ ...fixed, ...changed } as CreateLimit)
    onDone(await post<LimitObject>(limit ? `/v1/limits/${limit.id}` : '/v1/limits', order))
  }
  const option = (value: string, key: MessageKey): readonly [string, string] => [value, t(key)]
  return (
    <FormDialog
      title={t(limit ? 'limits.changeTitle' : 'limits.new')}
      label={t('save')}
      onClose={onClose}
      act={save}
    >
      {limit ? null : (
        <div class="form-row">
          <SelectField
            label={t('limits.scope')}
            value={scope}
            options={[
              option('entity', 'limits.scope.entity'),
              option('entity_type', 'limits.scope.entity_type'),
              option('project', 'limits.scope.project'),
            ]}
            onInput={setScope}
          />
          {scope === 'project' ? null : (
            <TextField
              label={t(scope === 'entity' ? 'line.entity' : 'usage.by.entity_type')}
              value={name}
              onInput={setName}
              required
              placeholder={scope === 'entity' ? 'user:42' : 'user'}
            />
          )}
        </div>
      )}
      {limit ? null : (
        <div class="form-row">
          <SelectField
            label={t('limits.metric')}
            value={metric}
            options={[option('cost_usd', 'limits.metric.cost_usd'), option('tokens', 'line.usage')]}
            onInput={setMetric}
          />
          <SelectField
            label={t('limits.window')}
            value={window}
            options={[option('day', 'limits.window.day'), option('month', 'limits.window.month')]}
            onInput={setWindow}
          />
        </div>
      )}
      <div class="form-row">
        <TextField
          label={t('limits.amount')}
          type="number"
          min={0}
          step="any"
          value={amount}
          onInput={setAmount}
          required
        />
        <SelectField
          label={t('limits.action')}
          value={action}
          options={[option('block', 'limits.action.block'), option('notify', 'limits.notify')]}
          onInput={setAction}
        />
      </div>
      <TextField
        label={t('limits.notifyAt')}
        value={notify}
        onInput={setNotify}
        hint={t('limits.notifyHint')}
      />
      <TextField
        label={t('limits.description')}
        value={description}
        onInput={setDescription}
        hint={t('limits.descriptionHint')}
      />
    </FormDialog>
  )
}
