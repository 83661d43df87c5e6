// The page of spending limits shows how much of each is spent and when it resets, and creates, changes and deletes
// them.
import type { VNode } from 'preact'
import { useState } from 'preact/hooks'
import { dayOf, dayText } from '../../domain/days.ts'
import { recordOf } from '../../domain/json-record.ts'
import {
  LIMIT_ACTIONS,
  LIMIT_METRICS,
  LIMIT_SCOPES,
  LIMIT_WINDOWS,
  type LimitWindow,
  windowAt,
} from '../../domain/limit.ts'
import type { CreateLimit, LimitObject } from '../../wire/limit.ts'
import type { UsageObject } from '../../wire/usage.ts'
import { get, post } from '../api.ts'
import { now } from '../browser-clock.ts'
import { compact, percent, usd } from '../format.ts'
import { type MessageKey, t } from '../i18n.ts'
import { Button, Entity, TextButton } from '../parts/button.tsx'
import { askToRemove, FormDialog } from '../parts/dialog.tsx'
import { optionsOf, SelectField, TextField, useFields } from '../parts/field.tsx'
import { LoadedPages } from '../parts/long-table.tsx'
import { Empty, FailureNotice, Notice } from '../parts/notice.tsx'
import { Page, Time } from '../parts/page.tsx'
import { useGet, usePages, useResource } from '../resource.ts'
import { replaceQuery, useAddress } from '../router.ts'
import { may } from '../session.ts'

export type Spent = Readonly<Record<LimitWindow, UsageObject>>

export async function readSpent(signal: AbortSignal): Promise<Spent> {
  const read = (window: LimitWindow): Promise<UsageObject> => {
    const start = dayText(dayOf(windowAt(window, now()).start))
    return get('/v1/usage/entities', { start, group_by: 'entity,entity_type' }, { signal })
  }
  const found = await Promise.all(LIMIT_WINDOWS.map(read))
  return recordOf(LIMIT_WINDOWS, (window) => found[LIMIT_WINDOWS.indexOf(window)]!)
}

export function Limits(): VNode {
  const limits = usePages<LimitObject>('/v1/limits', {})
  const shown = limits.rows.filter((limit) => limit !== undefined)
  const reload = (): void => limits.refresh()
  const spent = useResource(readSpent, [])
  const { query } = useAddress()
  const edited = may('limits:write') ? query.get('change') : null
  const { data: changed } = useGet<LimitObject>(
    edited === null || edited === 'new' ? null : `/v1/limits/${encodeURIComponent(edited)}`,
  )
  const edit = (change: string | null): void => replaceQuery({ change })
  const [unpriced, setUnpriced] = useState<readonly string[]>([])
  const create = may('limits:write') ? (
    <Button label={t('limits.new')} icon="new" kind="primary" onClick={() => edit('new')} />
  ) : null
  return (
    <Page title={t('nav.limits')} lead={t('limits.lead')} actions={create}>
      <FailureNotice failure={spent.failure} retry={spent.reload} />
      {unpriced.length === 0 ? null : (
        <Notice tone="warn">{t('limits.unpriced', { models: unpriced.join(', ') })}</Notice>
      )}
      <LoadedPages
        pages={limits}
        none={
          <Empty title={t('limits.none')}>
            <p>{t('limits.noneText')}</p>
          </Empty>
        }
      >
        <ul class="limits">
          {shown.map((limit) => (
            <LimitCard
              limit={limit}
              spent={spent.data}
              edit={() => edit(limit.id)}
              reload={reload}
              key={limit.id}
            />
          ))}
        </ul>
        {limits.hasMore ? (
          <Button label={t('limits.next')} onClick={() => limits.show(0, shown.length + 1)} />
        ) : null}
      </LoadedPages>
      {edited === 'new' || changed ? (
        <LimitDialog
          limit={changed}
          onClose={() => edit(null)}
          onDone={(saved) => {
            setUnpriced(saved.unpriced_models ?? [])
            reload()
          }}
        />
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
  reload,
}: {
  limit: LimitObject
  spent: Spent | null
  edit: () => void
  reload: () => void
}): VNode {
  const show = shownIn(limit)
  const all = spent ? gauges(limit, spent) : []
  const name = limit.entity ?? limit.entity_type ?? t('limits.project')
  const remove = (): void => {
    const question = { title: t('limits.removeTitle'), label: t('remove'), text: t('limits.removeText') }
    askToRemove(`/v1/limits/${limit.id}`, question, reload)
  }
  return (
    <li class="card stack">
      <div class="section-head">
        <div>
          <h2>
            {limit.scope === 'entity_type' ? `${t('limits.each')} ` : ''}
            {limit.entity ? <Entity name={limit.entity} /> : name}
          </h2>
          <div class="muted small">
            {t(`limits.${limit.window}` satisfies MessageKey, { amount: show(limit.amount) })}
            {limit.action === 'notify' ? ` · ${t('limits.action.notify')}` : ''}
          </div>
        </div>
        {may('limits:write') ? (
          <div class="row">
            <TextButton label={t('change')} onClick={edit} />
            <TextButton label={t('remove')} kind="danger" onClick={remove} />
          </div>
        ) : null}
      </div>
      {all.length === 0 && spent ? <p class="muted small">{t('limits.nobody')}</p> : null}
      {all.slice(0, SHOWN).map(({ name, value }) => (
        <Gauge name={limit.scope === 'entity_type' ? name : null} value={value} limit={limit} />
      ))}
      {all.length > SHOWN ? <p class="muted small">{t('limits.more', { n: all.length - SHOWN })}</p> : null}
      <div class="muted small">
        {t('limits.resets')} <Time at={windowAt(limit.window, now()).end / 1000} short />
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
  const { values, bind } = useFields({
    scope: limit?.scope ?? 'entity',
    name: limit?.entity ?? limit?.entity_type ?? '',
    metric: limit?.metric ?? 'cost_usd',
    window: limit?.window ?? 'month',
    amount: limit ? String(limit.amount) : '',
    action: limit?.action ?? 'block',
    notify: (limit?.notify_at ?? [0.8]).map((fraction) => fraction * 100).join(', '),
    description: limit?.description ?? '',
  })
  const { scope, metric, window, action } = values
  const save = async (): Promise<void> => {
    const changed = {
      amount: Number(values.amount),
      action,
      notify_at: (values.notify.match(/[^\s,;%]+/g) ?? []).map((text) => Number(text) / 100),
      description: values.description.trim() || null,
    }
    const fixed = { scope, metric, window, ...(scope === 'project' ? {} : { [scope]: values.name.trim() }) }
    const order = limit ? changed : ({ ...fixed, ...changed } as CreateLimit)
    onDone(await post<LimitObject>(limit ? `/v1/limits/${limit.id}` : '/v1/limits', order))
  }
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
            {...bind('scope')}
            options={optionsOf('limits.scope', LIMIT_SCOPES)}
          />
          {scope === 'project' ? null : (
            <TextField
              label={t(scope === 'entity' ? 'line.entity' : 'usage.by.entity_type')}
              {...bind('name')}
              required
              placeholder={scope === 'entity' ? 'user:42' : 'user'}
            />
          )}
          <SelectField
            label={t('limits.metric')}
            {...bind('metric')}
            options={optionsOf('limits.metric', LIMIT_METRICS)}
          />
          <SelectField
            label={t('limits.window')}
            {...bind('window')}
            options={optionsOf('limits.window', LIMIT_WINDOWS)}
          />
        </div>
      )}
      <div class="form-row">
        <TextField label={t('limits.amount')} type="number" min={0} step="any" {...bind('amount')} required />
        <SelectField
          label={t('limits.action')}
          {...bind('action')}
          options={optionsOf('limits.action', LIMIT_ACTIONS)}
        />
      </div>
      <TextField label={t('limits.notifyAt')} {...bind('notify')} hint={t('limits.notifyHint')} />
      <TextField
        label={t('limits.description')}
        {...bind('description')}
        hint={t('limits.descriptionHint')}
      />
    </FormDialog>
  )
}
