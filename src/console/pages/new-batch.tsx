// The page that creates a batch has three steps: choose a file, see its projected cost, create the batch.
import type { VNode } from 'preact'
import { useEffect, useRef, useState } from 'preact/hooks'
import { defaultWindow, durationMs } from '../../domain/days.ts'
import type { BatchEstimate, BatchObject, CreateBatch } from '../../wire/batch.ts'
import type { FileObject } from '../../wire/file.ts'
import type { ModelObject } from '../../wire/model.ts'
import type { QuotasObject } from '../../wire/project.ts'
import { createOnce, fetchApi, get, pathWith, post, upload } from '../api.ts'
import { later, now } from '../browser-clock.ts'
import { between, bytes, compact, count, percent, usd, usdExact } from '../format.ts'
import { t } from '../i18n.ts'
import { dropDraft, keepDraft, keptDraft } from '../kept.ts'
import { ownerOf } from '../limit-shares.ts'
import { Button } from '../parts/button.tsx'
import { openDialog, SecretDialog } from '../parts/dialog.tsx'
import { SelectField, TextField, useFields } from '../parts/field.tsx'
import { FailureNotice, Loading, Notice } from '../parts/notice.tsx'
import { costFigure, Figures, Page, Section, Time } from '../parts/page.tsx'
import { Badge } from '../parts/status.tsx'
import { type Column, Table } from '../parts/table.tsx'
import { reaskText } from '../parts/text.tsx'
import { useAction, useAll, useGet, useResource } from '../resource.ts'
import { currentAddress, href, navigate, replaceQuery } from '../router.ts'
import { may } from '../session.ts'
import { SIMULATOR } from './batches.tsx'
import { BatchSource, jsonProblem } from './new-batch-source.tsx'

const POLL_MS = 300
/** The bytes of a file that are read for the endpoint of its first line. */
const FIRST_LINE_BYTES_MAX = 1024 * 1024
const EXAMPLE = '/console/gsm8k.jsonl'
/** The largest file in bytes that is read again to show its bad lines. */
const SHOWN_BYTES_MAX = 64 * 1024 * 1024

export function NewBatch(): VNode {
  const models = useAll<ModelObject>('/v1/models')
  const [local, setLocal] = useState<File | null>(null)
  const [file, setFile] = useState<FileObject | null>(null)
  const [share, setShare] = useState(0)
  const action = useAction()
  const abort = useRef(new AbortController())
  useEffect(() => () => abort.current.abort(), [])

  const take = (chosen: File, run = false): void => {
    setLocal(chosen)
    setFile(null)
    setShare(0)
    void action.run(async () => {
      const form = new FormData()
      form.set('purpose', 'batch')
      form.set('file', chosen)
      let uploaded = await upload<FileObject>('/v1/files', form, setShare, abort.current.signal)
      while (uploaded.status === 'pending') {
        await new Promise<void>((resolve) => later(POLL_MS, resolve))
        uploaded = await get<FileObject>(`/v1/files/${uploaded.id}`, {}, { signal: abort.current.signal })
      }
      // The simulator is free, so that the batch is created at once.
      if (run && uploaded.status === 'processed')
        navigate(
          `/batches/${(await createOnce<BatchObject>('/v1/batches', await exampleOrder(uploaded, chosen))).id}`,
        )
      else {
        // A reloaded page continues with the uploaded file.
        replaceQuery({ file: uploaded.status === 'processed' ? uploaded.id : null })
        setFile(uploaded)
      }
    })
  }
  const offered = models.data ?? []
  useEffect(() => {
    if (currentAddress().query.get('example') === null || offered.length === 0) return
    const simulator = offered.find(({ id }) => id === SIMULATOR)
    void exampleFile(simulator ?? offered[0]).then(
      (example) => take(example, simulator !== undefined),
      () => {},
    )
  }, [offered.length > 0])

  const used = currentAddress().query.get('file')
  useEffect(() => {
    if (used !== null)
      void action.run(async () =>
        setFile(await get<FileObject>(`/v1/files/${used}`, {}, { signal: abort.current.signal })),
      )
  }, [])

  const again = (): void => {
    replaceQuery({ file: null })
    setLocal(null)
    setFile(null)
    action.clear()
  }
  return (
    <Page title={t('nav.new')} lead={t('new.lead')}>
      {local === null && file === null ? (
        models.loading && !models.data ? (
          <Loading rows={3} />
        ) : (
          <BatchSource models={offered} onFile={take} />
        )
      ) : (
        <div class="card row">
          <div class="grow">
            <strong>{local?.name ?? file?.filename}</strong>
            <div class="muted small">
              {bytes(local?.size ?? file?.bytes ?? 0)}
              {file?.status === 'processed' ? ` · ${t('lines.count', { n: file.line_count })}` : ''}
            </div>
          </div>
          {action.busy ? (
            <span class="muted" role="status">
              {share < 1 ? t('new.uploading', { share: percent(share, 1) }) : t('status.validating')}
            </span>
          ) : (
            <Button label={t('new.other')} onClick={again} />
          )}
        </div>
      )}
      {action.busy && local ? (
        <div class="progress thin">
          <div class="progress-done" style={{ width: `${share * 100}%` }} />
        </div>
      ) : null}
      <FailureNotice failure={action.failure} />
      {file?.status === 'error' && local ? <BadLines file={file} local={local} /> : null}
      {file?.status === 'processed' ? <OrderForm file={file} content={local ?? file} /> : null}
    </Page>
  )
}

/** The example file, with an existing model in its lines. */
async function exampleFile(model: ModelObject | undefined): Promise<File> {
  const text = await (await fetchApi('GET', EXAMPLE)).text()
  const named = text.replaceAll(`"model":"${SIMULATOR}"`, `"model":${JSON.stringify(model?.id ?? SIMULATOR)}`)
  return new File([named], 'gsm8k.jsonl')
}

/** The order of a batch with any endpoint, which the service checks. */
type Order = Omit<CreateBatch, 'endpoint'> & { endpoint: string }

const CHAT = '/v1/chat/completions'

/** The choices for a batch, as they are typed. */
const CHOICES = {
  ...{ window: '', name: '', entity: '', start: '', metadata: '' },
  ...{ reask: '', webhook: '', output: '' },
}

/** The options for asking again when an answer misses its schema: number and mode. */
const REASKS = ['', '1:repeat', '3:repeat', '1:repair', '3:repair'] as const

const DRAFT = 'draft'

/** The choices for this file from before the page was reloaded. */
function readDraft(fileId: string): typeof CHOICES {
  const { file, ...choices } = keptDraft(DRAFT)
  return file === fileId ? { ...CHOICES, ...choices } : CHOICES
}

function orderOf(
  file: FileObject,
  endpoint: string,
  { window, name, entity, start, metadata, reask } = CHOICES,
): Order {
  const pairs = metadata.split(';').map((pair) => {
    const [key = '', ...value] = pair.split('=')
    return [key.trim(), value.join('=').trim()] as const
  })
  const named = [
    ['name', name.trim()],
    ['entity', entity.trim()],
  ] as const
  // A word without `=` is a key without a value.
  const given = [...pairs.filter((pair) => pair.join('') !== ''), ...named.filter(([_, text]) => text !== '')]
  return {
    input_file_id: file.id,
    endpoint,
    completion_window: window,
    ...(given.length === 0 ? {} : { metadata: Object.fromEntries(given) }),
    ...(start === '' ? {} : { start_after: Date.parse(start) / 1000 }),
    ...(reask === '' ? {} : { reask: reaskOf(reask) }),
  }
}

async function exampleOrder(file: FileObject, chosen: File): Promise<Order> {
  const { completion_windows } = await get<QuotasObject>('/v1/quotas')
  const window = defaultWindow(completion_windows)
  return orderOf(file, await endpointOf(chosen), { ...CHOICES, window })
}

function reaskOf(text: string): NonNullable<CreateBatch['reask']> {
  const [max, mode] = text.split(':')
  return { max: Number(max), mode: mode === 'repair' ? 'repair' : 'repeat' }
}

/** The destinations of events and results, which change neither price nor time. */
function placesOf({ webhook, output }: typeof CHOICES): Pick<CreateBatch, 'webhook' | 'output_url'> {
  return {
    ...(webhook.trim() === '' ? {} : { webhook: { url: webhook.trim() } }),
    ...(output.trim() === '' ? {} : { output_url: output.trim() }),
  }
}

/** The endpoint in the first line of a local or an uploaded file. */
async function endpointOf(file: File | FileObject): Promise<string> {
  const range = { range: `bytes=0-${FIRST_LINE_BYTES_MAX - 1}` }
  const content =
    file instanceof File
      ? file.slice(0, FIRST_LINE_BYTES_MAX)
      : await fetchApi('GET', `/v1/files/${file.id}/content`, undefined, { headers: range })
  const [first = ''] = (await content.text()).split('\n', 1)
  const { 1: url } = /"url"\s*:\s*"([^"\\]*)"/.exec(first) ?? []
  return url ?? CHAT
}

type BadLine = { line: number; column: number | null; code: string; message: string; text: string }

function BadLines({ file, local }: { file: FileObject; local: File }): VNode {
  const lines = useResource(
    async () => (local.size > SHOWN_BYTES_MAX ? [] : (await local.text()).split('\n')),
    [file.id],
  )
  const rows: BadLine[] = (file.errors ?? []).map(({ line, code, message }) => {
    const text = lines.data?.[line - 1] ?? ''
    return { line, code, message, text, column: columnOf(message, text) }
  })
  const columns: Column<BadLine>[] = [
    {
      title: t('new.place'),
      width: '11rem',
      main: true,
      cell: ({ line, column }) =>
        line === 0
          ? t('new.wholeFile')
          : column === null
            ? t('line.number', { n: line })
            : t('new.lineColumn', { line, column }),
    },
    {
      title: t('new.problem'),
      cell: ({ code, message }) => (
        <div>
          <code class="code">{code}</code>
          <div>{message}</div>
        </div>
      ),
    },
    {
      title: t('new.text'),
      cell: ({ text, column }) => <code class="code excerpt">{excerpt(text, column)}</code>,
    },
  ]
  return (
    <div class="stack">
      <Notice tone="bad" title={t('new.invalid')}>
        {file.status_details ?? ''}
      </Notice>
      <Table label={t('new.invalid')} columns={columns} rows={rows} />
    </div>
  )
}

/** The invalid column in the service's message, or else as found here. */
function columnOf(message: string, text: string): number | null {
  const { 1: named } = /^Column (\d+)\b/.exec(message) ?? []
  return named === undefined ? (jsonProblem(text)?.column ?? null) : Number(named)
}

const EXCERPT = 80

function excerpt(text: string, column: number | null): string {
  const from = Math.max(0, (column ?? 1) - EXCERPT / 2)
  return `${from > 0 ? '…' : ''}${text.slice(from, from + EXCERPT)}${text.length > from + EXCERPT ? '…' : ''}`
}

function OrderForm({ file, content }: { file: FileObject; content: File | FileObject }): VNode {
  const { values: choices, bind } = useFields(
    () => readDraft(file.id),
    (changed) => keepDraft(DRAFT, { file: file.id, ...changed }),
  )
  const quotas = useGet<QuotasObject>('/v1/quotas')
  const windows = quotas.data?.completion_windows ?? []
  const window =
    windows.includes(choices.window) || windows.length === 0 ? choices.window : defaultWindow(windows)
  const endpoint = useResource(async () => await endpointOf(content), [file.id])
  const action = useAction()
  const order = orderOf(file, endpoint.data ?? CHAT, { ...choices, window })
  const estimate = useResource(
    async (signal) =>
      endpoint.data === null || window === ''
        ? null
        : await post<BatchEstimate>('/v1/batches?dry_run=true', order, { signal }),
    [order, endpoint.data],
  )
  const ends = durationMs(window)
  const create = (): void =>
    void action.run(async () => {
      const batch = await createOnce<BatchObject>('/v1/batches', { ...order, ...placesOf(choices) })
      dropDraft(DRAFT)
      const leave = (): void => navigate(`/batches/${batch.id}`)
      const { secret } = batch.webhook ?? {}
      if (secret === undefined) return leave()
      const [title, text] = [t('webhooks.secret'), t('webhooks.secretText')]
      openDialog(<SecretDialog title={title} text={text} secret={secret} onClose={leave} />)
    })
  const isReading = endpoint.loading && endpoint.data === null
  const isBlocked = estimate.data?.accepted === false
  const submit = (event: Event): void => {
    event.preventDefault()
    create()
  }
  return (
    <form class="stack wide" onSubmit={submit}>
      <FailureNotice failure={estimate.failure} />
      {estimate.data ? <Estimate estimate={estimate.data} /> : null}
      <div class="form">
        <div class="form-row">
          <TextField label={t('new.name')} {...bind('name')} placeholder={file.filename} />
          <TextField
            label={t('line.entity')}
            {...bind('entity')}
            placeholder="team:search"
            hint={t('new.entityHint')}
          />
        </div>
        <div class="form-row">
          <SelectField
            label={t('batch.window')}
            {...bind('window')}
            value={window}
            options={windows.map((name) => [name, name] as const)}
            hint={
              ends === null ? null : (
                <>
                  {t('new.windowEnd')} <Time at={(now() + ends) / 1000} />
                </>
              )
            }
          />
          <TextField
            label={t('new.start')}
            type="datetime-local"
            {...bind('start')}
            hint={t('new.startHint')}
          />
        </div>
        <TextField
          label={t('new.metadata')}
          {...bind('metadata')}
          placeholder="run=nightly; owner=ana"
          hint={t('new.metadataHint')}
        />
        <details>
          <summary>{t('new.more')}</summary>
          <div class="form">
            <SelectField
              label={t('new.reask')}
              {...bind('reask')}
              options={REASKS.map((text) => [text, reaskText(text === '' ? null : reaskOf(text))] as const)}
              hint={t('new.reaskHint')}
            />
            {may('webhooks:write') ? (
              <TextField
                label={t('new.webhook')}
                type="url"
                {...bind('webhook')}
                placeholder="https://example.com/offpeak"
                hint={t('new.webhookHint')}
              />
            ) : null}
            <TextField
              label={t('new.output')}
              {...bind('output')}
              placeholder="s3://bucket/path/"
              hint={t('new.outputHint')}
            />
          </div>
        </details>
        <FailureNotice failure={action.failure} />
        <div class="row">
          <Button
            label={t('new.create')}
            kind="primary"
            submit
            busy={action.busy}
            disabled={isBlocked || isReading}
          />
          {isBlocked || isReading ? (
            <span class="muted" role="status">
              {t(isBlocked ? 'new.blocked' : 'new.estimating')}
            </span>
          ) : null}
        </div>
      </div>
    </form>
  )
}

type Group = BatchEstimate['groups'][number]

function Estimate({ estimate }: { estimate: BatchEstimate }): VNode {
  const { estimated_completion: at, unknown_models: unknown = [], unpriced_models: unpriced } = estimate
  const { prompt_cache: cache } = estimate
  const columns: Column<Group>[] = [
    {
      title: t('line.model'),
      main: true,
      cell: ({ model }) => [
        model === null ? '–' : <span class="mono">{model}</span>,
        unknown.includes(model ?? '') ? <Badge tone="bad" text={t('new.isUnknown')} /> : null,
      ],
    },
    { title: t('line.entity'), cell: ({ entity }) => (entity === null ? '–' : entity) },
    { title: t('lines.title'), align: 'end', cell: ({ lines }) => count(lines) },
    { title: t('new.inputTokens'), align: 'end', cell: ({ input_tokens }) => compact(input_tokens) },
    {
      title: t('new.outputTokens'),
      align: 'end',
      cell: ({ output_tokens_max }) => compact(output_tokens_max),
    },
    {
      title: t('new.atMost'),
      align: 'end',
      cell: ({ cost_usd, priced }) =>
        priced ? (
          <span title={usdExact(cost_usd)}>{usd(cost_usd)}</span>
        ) : (
          <Badge tone="warn" text={t('new.unpriced')} />
        ),
    },
  ]
  return (
    <Section title={t('new.estimate')}>
      <div class="card">
        <Figures
          figures={[
            costFigure(t('new.atMost'), estimate.cost_usd),
            {
              title: t('overview.doneAt'),
              value: at == null ? '–' : <Time at={at} short />,
              note: at == null ? t('new.speedUnknown') : t('batch.left', { time: between(now() / 1000, at) }),
            },
            { title: t('lines.title'), value: count(estimate.lines) },
            {
              title: t('new.inputTokens'),
              value: compact(estimate.input_tokens),
              note:
                cache && cache.shared > 0
                  ? t('new.promptCache', {
                      shared: percent(cache.shared, 1),
                      written: percent(cache.as_written, 1),
                    })
                  : null,
            },
            { title: t('new.outputTokens'), value: compact(estimate.output_tokens_max) },
          ]}
        />
      </div>
      {unknown.length === 0 ? null : (
        <Notice tone="bad" title={t('new.isUnknown')}>
          {t('new.unknown', { models: unknown.join(', ') })}
        </Notice>
      )}
      {unpriced.length === 0 ? null : (
        <Notice tone="warn" title={t('new.unpriced')}>
          {t('new.free', { models: unpriced.join(', ') })}
        </Notice>
      )}
      {estimate.limits.map(({ limit, entity, spent, open, needed, exceeds, resets_at }) => {
        const shown = (value: number): string => (limit.metric === 'cost_usd' ? usd(value) : compact(value))
        const values = {
          spent: shown(spent),
          open: shown(open),
          needed: shown(needed),
          amount: shown(limit.amount),
        }
        return (
          <Notice
            tone={!exceeds ? 'info' : limit.action === 'block' ? 'bad' : 'warn'}
            title={
              <a href={href(pathWith('/limits', { change: limit.id }))}>
                {`${t('new.limit')} ${entity ?? ownerOf(limit) ?? t('limits.project')}`}
              </a>
            }
          >
            {t('new.limitText', values)}{' '}
            {exceeds ? (
              <>
                {t('limits.resets')} <Time at={resets_at} short />
              </>
            ) : null}
          </Notice>
        )
      })}
      <Table label={t('new.estimate')} columns={columns} rows={estimate.groups} />
    </Section>
  )
}
