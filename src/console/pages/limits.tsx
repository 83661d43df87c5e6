// The page of limits shows how much of each is spent and when it resets, and creates, changes and deletes them.
import type { VNode } from 'preact'
import { useState } from 'preact/hooks'
import { LIMIT_ACTIONS, LIMIT_METRICS, LIMIT_SCOPES, LIMIT_WINDOWS, windowAt } from '../../domain/limit.ts'
import type { CreateLimit, LimitObject } from '../../wire/limit.ts'
import { createOnce, post } from '../api.ts'
import { now } from '../browser-clock.ts'
import { compact, percent, usd } from '../format.ts'
import { type MessageKey, t } from '../i18n.ts'
import { type Cap, capsOf, ownerOf, readSpent, shareOf, toneOf } from '../limit-shares.ts'
import { Button, Entity, TextButton } from '../parts/button.tsx'
import { askToRemove, FormDialog } from '../parts/dialog.tsx'
import { optionsOf, SelectField, TextField, useFields } from '../parts/field.tsx'
import { LoadedPages } from '../parts/long-table.tsx'
import { Empty, FailureNotice, Notice } from '../parts/notice.tsx'
import { Page, Time } from '../parts/page.tsx'
import { useGet, usePages, useResource } from '../resource.ts'
import { replaceQuery, useAddress } from '../router.ts'
import { may } from '../session.ts'

export function Limits(): VNode {
  const limits = usePages<LimitObject>('/v1/limits', {})
  const shown = limits.rows.filter((limit) => limit !== undefined)
  const reload = (): void => limits.refresh()
  const spent = useResource((signal) => readSpent(shown, signal), [shown.map(({ id }) => id)], {
    about: ['usage'],
  })
  const caps = spent.data ? capsOf(shown, spent.data) : null
  const fullest = new Map(caps?.toReversed().map((cap) => [cap.limit.id, shareOf(cap)]))
  const sorted = shown.toSorted((a, b) => (fullest.get(b.id) ?? 0) - (fullest.get(a.id) ?? 0))
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
      <LoadedPages pages={limits} none={<Empty title={t('limits.none')} text={t('limits.noneText')} />}>
        <ul class="limits">
          {sorted.map((limit) => (
            <LimitCard
              limit={limit}
              caps={caps?.filter((cap) => cap.limit.id === limit.id) ?? null}
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

const shownIn =
  ({ metric }: LimitObject) =>
  (value: number): string =>
    metric === 'cost_usd' ? usd(value) : t(`limits.${metric}`, { n: compact(value) })

const SHOWN = 6

interface LimitCardProps {
  limit: LimitObject
  /** The spend under the limits; null until it is read. */
  caps: readonly Cap[] | null
  edit: () => void
  reload: () => void
}

function LimitCard({ limit, caps, edit, reload }: LimitCardProps): VNode {
  const show = shownIn(limit)
  const all = caps ?? []
  const name = ownerOf(limit) ?? t('limits.project')
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
            {limit.model && limit.scope !== 'model' ? ` · ${limit.model}` : ''}
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
      {caps?.length === 0 ? <p class="muted small">{t('limits.nobody')}</p> : null}
      {all.slice(0, SHOWN).map((cap) => (
        <Gauge cap={cap} isNamed={limit.scope === 'entity_type'} />
      ))}
      {all.length > SHOWN ? <p class="muted small">{t('limits.more', { n: all.length - SHOWN })}</p> : null}
      <div class="muted small">
        {t('limits.resets')} <Time at={windowAt(limit.window, now()).end / 1000} short />
      </div>
      {limit.description ? <p class="muted">{limit.description}</p> : null}
    </li>
  )
}

/** The gauge of a limit's spend. `isNamed`: whether it names the entity. */
export function Gauge({ cap, isNamed }: { cap: Cap; isNamed: boolean }): VNode {
  const { limit, value } = cap
  const name = cap.name ?? t('limits.project')
  const show = shownIn(limit)
  return (
    <div class={`gauge ${toneOf(cap)}`}>
      <div class="progress-line">
        {isNamed ? (
          <span class="gauge-name">{limit.entity || limit.entity_type ? <Entity name={name} /> : name}</span>
        ) : null}
        <span>
          {show(value)}
          {isNamed ? (
            <span class="muted"> / {t(`limits.${limit.window}`, { amount: show(limit.amount) })}</span>
          ) : null}
        </span>
        <span class="muted push">{percent(value, limit.amount)}</span>
      </div>
      <div
        class="gauge-track"
        role="meter"
        aria-label={t('limits.spent', { name })}
        aria-valuemin={0}
        aria-valuemax={limit.amount}
        aria-valuenow={Math.min(value, limit.amount)}
        aria-valuetext={`${show(value)}, ${percent(value, limit.amount)}`}
      >
        <div class="gauge-fill" style={{ width: `${Math.min(1, shareOf(cap)) * 100}%` }} />
        {limit.notify_at.map((fraction) => (
          <i style={{ left: `${fraction * 100}%` }} title={percent(fraction, 1)} />
        ))}
      </div>
    </div>
  )
}

interface LimitDialogProps {
  limit: LimitObject | null
  onClose: () => void
  onDone: (saved: LimitObject) => void
}

type Options = ReturnType<typeof optionsOf>

function LimitDialog({ limit, onClose, onDone }: LimitDialogProps): VNode {
  const { values, bind } = useFields({
    scope: limit?.scope ?? 'entity',
    name: '',
    model: '',
    metric: limit?.metric ?? 'cost_usd',
    window: limit?.window ?? 'month',
    amount: limit ? String(limit.amount) : '',
    action: limit?.action ?? 'block',
    notify: (limit?.notify_at ?? [0.8])
      .map((fraction) => Number((fraction * 100).toPrecision(12)))
      .join(', '),
    description: limit?.description ?? '',
  })
  const { scope, metric, window, action } = values
  const named = (['entity', 'entity_type', 'key'] as const).find((name) => name === scope)
  const save = async (): Promise<void> => {
    const changed = {
      amount: Number(values.amount),
      action,
      notify_at: (values.notify.match(/[^\s,;%]+/g) ?? []).map((text) => Number(text) / 100),
      description: values.description.trim() || null,
    }
    const model = values.model.trim() || undefined
    const owner = named === undefined ? {} : { [named]: values.name.trim() }
    const fixed = { scope, metric, window, model, ...owner }
    const order = limit ? changed : ({ ...fixed, ...changed } as CreateLimit)
    onDone(
      limit
        ? await post<LimitObject>(`/v1/limits/${limit.id}`, order)
        : await createOnce<LimitObject>('/v1/limits', order),
    )
  }
  const choice = (name: 'scope' | 'metric' | 'window' | 'action', options: Options): VNode => (
    <SelectField label={t(`limits.${name}`)} {...bind(name)} options={options} />
  )
  return (
    <FormDialog
      title={t(limit ? 'limits.changeTitle' : 'limits.new')}
      label={t('save')}
      onClose={onClose}
      act={save}
    >
      {limit ? null : (
        <div class="form-row">
          {choice('scope', optionsOf('limits.scope', LIMIT_SCOPES))}
          {named ? (
            <TextField
              label={t(`usage.by.${named}`)}
              {...bind('name')}
              required
              placeholder={{ entity: 'user:42', entity_type: 'user', key: 'key_…' }[named]}
            />
          ) : null}
          <TextField label={t('usage.by.model')} {...bind('model')} required={scope === 'model'} />
          {choice('metric', optionsOf('limits.metric', LIMIT_METRICS))}
          {choice('window', optionsOf('limits.window', LIMIT_WINDOWS))}
        </div>
      )}
      <div class="form-row">
        <TextField label={t('limits.amount')} type="number" min={0} step="any" {...bind('amount')} required />
        {choice('action', optionsOf('limits.action', LIMIT_ACTIONS))}
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
