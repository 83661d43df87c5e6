// A new batch in three steps on one page: a file, what it would cost, and the order to run it.
import { useEffect, useRef, useState } from 'preact/hooks'
import type { BatchEstimate, BatchObject, CreateBatch } from '../../wire/batch.ts'
import type { FileObject } from '../../wire/file.ts'
import type { List } from '../../wire/list.ts'
import type { ModelObject } from '../../wire/model.ts'
import { fetchApi, get, post, upload } from '../api.ts'
import { later } from '../browser-clock.ts'
import { bytes, compact, count, percent, usd, usdExact } from '../format.ts'
import { h, type View } from '../h.ts'
import { t } from '../i18n.ts'
import { Button } from '../parts/button.ts'
import { TextField } from '../parts/field.ts'
import { Figures } from '../parts/figures.ts'
import { FailureNotice, Loading, Notice } from '../parts/notice.ts'
import { Page, Section } from '../parts/page.ts'
import { type Column, Table } from '../parts/table.ts'
import { visibleText } from '../parts/text.ts'
import { Time } from '../parts/time.ts'
import { useAction, useResource } from '../resource.ts'
import { currentAddress, navigate } from '../router.ts'
import { BatchSource, jsonProblem, SIMULATOR } from './new-batch-source.ts'

const POLL_MS = 300
const EXAMPLE = '/console/gsm8k.jsonl'
/** Larger files are not read again to show their bad lines. */
const SHOWN_BYTES_MAX = 64 * 1024 * 1024

export function NewBatch(): View {
  const models = useResource((signal) => get<List<ModelObject>>('/v1/models', {}, { signal }), [])
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
      // The simulator costs nothing: nothing is to be decided.
      if (run && uploaded.status === 'processed')
        navigate(`/batches/${(await post<BatchObject>('/v1/batches', orderOf(uploaded))).id}`)
      else setFile(uploaded)
    })
  }
  const offered = models.data?.data ?? []
  useEffect(() => {
    if (currentAddress().query.get('example') === null || offered.length === 0) return
    const simulator = offered.find(({ id }) => id === SIMULATOR)
    void exampleFile(simulator ?? offered[0]).then(
      (example) => take(example, simulator !== undefined),
      () => {},
    )
  }, [offered.length > 0])

  const again = (): void => {
    setLocal(null)
    setFile(null)
    action.clear()
  }
  return h(Page, { title: t('new.title'), lead: t('new.lead') }, [
    local === null
      ? models.loading && !models.data
        ? h(Loading, { rows: 3 })
        : h(BatchSource, { models: offered, onFile: take })
      : h('div', { class: 'card row' }, [
          h('div', { class: 'grow' }, [
            h('strong', null, visibleText(local.name)),
            h('div', { class: 'muted small' }, [
              bytes(local.size),
              file?.status === 'processed' ? ` · ${t('lines.count', { n: file.line_count })}` : '',
            ]),
          ]),
          action.busy
            ? h(
                'span',
                { class: 'muted', role: 'status' },
                share < 1 ? t('new.uploading', { share: percent(share, 1) }) : t('new.validating'),
              )
            : h(Button, { label: t('new.other'), onClick: again }),
        ]),
    action.busy && local
      ? h(
          'div',
          { class: 'progress thin' },
          h('div', { class: 'progress-done', style: { width: `${share * 100}%` } }),
        )
      : null,
    h(FailureNotice, { failure: action.failure }),
    file?.status === 'error' && local ? h(BadLines, { file, local }) : null,
    file?.status === 'processed' ? h(Order, { file }) : null,
  ])
}

/** The example of the project, for a model that there is. */
async function exampleFile(model: ModelObject | undefined): Promise<File> {
  const text = await (await fetchApi('GET', EXAMPLE)).text()
  const named = text.replaceAll(`"model":"${SIMULATOR}"`, `"model":${JSON.stringify(model?.id ?? SIMULATOR)}`)
  return new File([named], 'gsm8k.jsonl')
}

function orderOf(file: FileObject, window = '24h', entity = ''): CreateBatch {
  return {
    input_file_id: file.id,
    endpoint: '/v1/chat/completions',
    completion_window: window,
    ...(entity.trim() === '' ? {} : { metadata: { entity: entity.trim() } }),
  }
}

interface BadLine {
  line: number
  column: number | null
  code: string
  message: string
  text: string
}

function BadLines({ file, local }: { file: FileObject; local: File }): View {
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
      cell: ({ code, message }) =>
        h('div', null, [h('code', { class: 'code' }, code), h('div', null, visibleText(message))]),
    },
    {
      title: t('new.text'),
      cell: ({ text, column }) => h('code', { class: 'code excerpt' }, visibleText(excerpt(text, column))),
    },
  ]
  return h('div', { class: 'stack' }, [
    h(Notice, { tone: 'bad', title: t('new.invalid') }, visibleText(file.status_details ?? '')),
    h(Table<BadLine>, {
      label: t('new.invalid'),
      columns,
      rows,
      keyOf: ({ line, code }) => `${line} ${code}`,
    }),
  ])
}

/** As the service says it, or else as it is found here. */
function columnOf(message: string, text: string): number | null {
  const { 1: named } = /^Column (\d+)\b/.exec(message) ?? []
  return named === undefined ? (jsonProblem(text)?.column ?? null) : Number(named)
}

const EXCERPT = 80

function excerpt(text: string, column: number | null): string {
  const from = Math.max(0, (column ?? 1) - EXCERPT / 2)
  return `${from > 0 ? '…' : ''}${text.slice(from, from + EXCERPT)}${text.length > from + EXCERPT ? '…' : ''}`
}

function Order({ file }: { file: FileObject }): View {
  const [window, setWindow] = useState('24h')
  const [entity, setEntity] = useState('')
  const action = useAction()
  const order = orderOf(file, window, entity)
  const estimate = useResource(
    (signal) => post<BatchEstimate>('/v1/batches?dry_run=true', order, { signal }),
    [order],
  )
  const create = (): void =>
    void action.run(async () => {
      const batch = await post<BatchObject>('/v1/batches', order)
      navigate(`/batches/${batch.id}`)
    })
  const submit = (event: Event): void => {
    event.preventDefault()
    create()
  }
  return h('form', { class: 'stack wide', onSubmit: submit }, [
    h(FailureNotice, { failure: estimate.failure }),
    estimate.data ? h(Estimate, { estimate: estimate.data }) : null,
    h('div', { class: 'form' }, [
      h('div', { class: 'form-row' }, [
        h(TextField, {
          label: t('batch.window'),
          value: window,
          onInput: setWindow,
          hint: t('new.windowHint'),
        }),
        h(TextField, {
          label: t('line.entity'),
          value: entity,
          onInput: setEntity,
          placeholder: 'team:search',
          hint: t('new.entityHint'),
        }),
      ]),
      h(FailureNotice, { failure: action.failure }),
      h(
        'div',
        { class: 'row' },
        h(Button, {
          label: t('new.create'),
          kind: 'primary',
          submit: true,
          busy: action.busy,
          disabled: estimate.data?.accepted === false,
        }),
      ),
    ]),
  ])
}

type Group = BatchEstimate['groups'][number]

function Estimate({ estimate }: { estimate: BatchEstimate }): View {
  const columns: Column<Group>[] = [
    {
      title: t('line.model'),
      main: true,
      cell: ({ model }) => (model === null ? '–' : h('span', { class: 'mono' }, visibleText(model))),
    },
    { title: t('line.entity'), cell: ({ entity }) => (entity === null ? '–' : visibleText(entity)) },
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
        priced ? h('span', { title: usdExact(cost_usd) }, usd(cost_usd)) : t('new.unpriced'),
    },
  ]
  return h(Section, { title: t('new.estimate') }, [
    h('div', { class: 'card' }, [
      h(Figures, {
        figures: [
          { title: t('new.atMost'), value: usd(estimate.cost_usd), exact: usdExact(estimate.cost_usd) },
          { title: t('lines.title'), value: count(estimate.lines) },
          { title: t('new.inputTokens'), value: compact(estimate.input_tokens) },
          { title: t('new.outputTokens'), value: compact(estimate.output_tokens_max) },
        ],
      }),
    ]),
    ...estimate.limits.map(({ limit, entity, spent, open, needed, exceeds, resets_at }) => {
      const shown = (value: number): string => (limit.metric === 'cost_usd' ? usd(value) : compact(value))
      const values = {
        spent: shown(spent),
        open: shown(open),
        needed: shown(needed),
        amount: shown(limit.amount),
      }
      return h(
        Notice,
        {
          tone: exceeds ? 'bad' : 'info',
          title: `${t('new.limit')} ${entity ?? limit.entity ?? limit.entity_type ?? t('limits.project')}`,
        },
        [
          t('new.limitText', values),
          ' ',
          exceeds ? [t('limits.resets'), ' ', h(Time, { at: resets_at, short: true })] : null,
        ],
      )
    }),
    h(Table<Group>, {
      label: t('new.estimate'),
      columns,
      rows: estimate.groups,
      keyOf: ({ model, entity }) => `${model} ${entity}`,
    }),
  ])
}
