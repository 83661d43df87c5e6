// Reads the lines of a new batch from a dropped file, from a table and a prompt, or from an editor for a few lines.
import type { VNode } from 'preact'
import { useState } from 'preact/hooks'
import { ColumnOrder } from '../../tables/column-order.ts'
import type { ModelObject } from '../../wire/model.ts'
import { fillPrompt, readTable, type SmallTable, unknownColumns } from '../csv-rows.ts'
import { percent } from '../format.ts'
import { t } from '../i18n.ts'
import { brokenAt } from '../json.ts'
import { keepDraft, keptDraft } from '../kept.ts'
import { Button, Choice } from '../parts/button.tsx'
import { SelectField, TextField, useFields } from '../parts/field.tsx'
import { Notice } from '../parts/notice.tsx'
import { CodeBlock } from '../parts/text.tsx'
import { replaceQuery, useAddress } from '../router.ts'
import { SIMULATOR } from './batches.tsx'

const TOKENS_MAX = 256

type SourceProps = { models: readonly ModelObject[]; onFile: (file: File) => void }

const SOURCES = ['file', 'table', 'editor'] as const
type Source = (typeof SOURCES)[number]

export function BatchSource(props: SourceProps): VNode {
  const { query } = useAddress()
  const source = SOURCES.find((name) => name === query.get('source')) ?? 'file'
  const Form = { file: DropZone, table: TableForm, editor: EditorForm }[source]
  return (
    <div class="stack">
      <div>
        <Choice
          label={t('new.source')}
          options={SOURCES.map((name) => [name, t(`new.${name}`)] as const)}
          value={source}
          choose={(name: Source) => replaceQuery({ source: name })}
        />
      </div>
      <Form {...props} key={source} />
    </div>
  )
}

function DropZone({ onFile }: SourceProps): VNode {
  const [over, setOver] = useState(false)
  const take = (files: FileList | null | undefined): void => {
    const file = files?.[0]
    if (file) onFile(file)
  }
  return (
    <label
      class={over ? 'drop over' : 'drop'}
      onDragOver={(event) => {
        event.preventDefault()
        setOver(true)
      }}
      onDragLeave={() => setOver(false)}
      onDrop={(event) => {
        event.preventDefault()
        setOver(false)
        take(event.dataTransfer?.files)
      }}
    >
      <strong>{t('new.drop')}</strong>
      <span class="muted">{t('new.dropHint')}</span>
      <input
        type="file"
        class="hidden"
        accept=".jsonl,.ndjson,application/jsonl"
        onChange={(event) => take(event.currentTarget.files)}
      />
      <span class="button plain" aria-hidden="true">
        {t('new.choose')}
      </span>
    </label>
  )
}

type LineOptions = { system?: string; max_tokens?: number; schema?: unknown }

function lineOf(
  model: string,
  custom_id: string,
  content: string,
  { system = '', max_tokens = TOKENS_MAX, schema }: LineOptions = {},
): string {
  const messages = [
    ...(system.trim() === '' ? [] : [{ role: 'system', content: system }]),
    { role: 'user', content },
  ]
  const json_schema = { name: 'answer', strict: true, schema }
  const response_format = schema ? { response_format: { type: 'json_schema', json_schema } } : {}
  const body = { model, max_tokens, messages, ...response_format }
  return JSON.stringify({ custom_id, method: 'POST', url: '/v1/chat/completions', body })
}

const asFile = (text: string, name: string): File => new File([text], name, { type: 'application/jsonl' })

/** The fields of a form, kept in the browser across reloads and visits of other pages. */
function useDraft<Name extends string>(name: string, start: Readonly<Record<Name, string>>) {
  const draft = `draft.${name}`
  return useFields(
    () => ({ ...start, ...(keptDraft(draft) as Partial<typeof start>) }),
    (values) => keepDraft(draft, values),
  )
}

/** The rows by which orders of columns are compared, after each change of the form. */
const COMPARED_MAX = 500

/** A warning about a prompt with names in single braces, without columns, or with columns in a costly order. */
function promptWarning(prompt: string, system: string, { columns, rows }: SmallTable): string | null {
  const both = `${prompt} ${system}`
  const { 1: name } = /(?<!\{)\{\s*([^{}]+?)\s*\}(?!\})/.exec(both) ?? []
  if (name !== undefined && columns.includes(name)) return t('new.singleBraces', { name })
  if (!both.includes('{{')) return t('new.sameForAll')
  const order = new ColumnOrder(prompt, columns, system)
  for (const row of rows.slice(0, COMPARED_MAX)) order.add((column) => row[column] ?? '')
  const advice = order.advice()
  if (advice === null) return null
  const { shared, as_written } = advice
  return t('new.columnOrder', {
    columns: advice.columns,
    shared: percent(shared, 1),
    written: percent(as_written, 1),
  })
}

function TableForm({ models, onFile }: SourceProps): VNode {
  const { values, bind } = useDraft('table', {
    text: 'name,city\nAda,London\nGrace,New York\nKatherine,Hampton',
    prompt: 'Greet {{name}} from {{city}} in one sentence.',
    model: models[0]?.id ?? '',
    system: '',
    tokens: String(TOKENS_MAX),
    schema: '',
    idColumn: '',
  })
  const { prompt, model, system } = values
  const table = readTable(values.text)
  const unknown = unknownColumns(`${prompt} ${system}`, table)
  const badSchema = values.schema.trim() === '' ? null : jsonProblem(values.schema)
  const schema = values.schema.trim() === '' || badSchema ? undefined : JSON.parse(values.schema)
  const id = table.columns.indexOf(values.idColumn)
  const ids = table.rows.map((row, i) => (id < 0 ? `line-${i + 1}` : (row[id] ?? '')))
  const seen = new Set<string>()
  const badId = ids.find((id) => id === '' || seen.size === seen.add(id).size)
  const filled = table.rows.map((row) => [prompt, system].map((text) => fillPrompt(text, table, row)))
  const lines = filled.map(([content = '', system = ''], i) =>
    lineOf(model, ids[i] ?? '', content, { system, max_tokens: Number(values.tokens), schema }),
  )
  const problem =
    lines.length === 0
      ? t('new.noRows')
      : unknown.length > 0
        ? t('new.noColumn', { name: unknown.join(', ') })
        : badId !== undefined
          ? t('new.badId', { id: badId })
          : badSchema
            ? t('new.badSchema')
            : null
  const doubt = promptWarning(prompt, system, table)
  const load = (files: FileList | null): void => void files?.[0]?.text().then(bind('text').onInput)
  return (
    <div class="columns">
      <div class="stack">
        <TextField label={t('new.rows')} {...bind('text')} rows={7} mono hint={t('new.rowsHint')} />
        <label class="link">
          {t('new.tableFile')}
          <input
            type="file"
            class="hidden"
            accept=".csv,.tsv,text/csv"
            onChange={(event) => load(event.currentTarget.files)}
          />
        </label>
        <TextField
          label={t('line.prompt')}
          {...bind('prompt')}
          rows={4}
          hint={t('new.promptHint', { columns: table.columns.map((name) => `{{${name}}}`).join(' ') })}
          error={unknown.length > 0 ? t('new.noColumn', { name: unknown.join(', ') }) : null}
        />
        {doubt === null ? null : <Notice tone="warn">{doubt}</Notice>}
        <TextField label={t('new.system')} {...bind('system')} rows={2} />
        <div class="form-row">
          <SelectField
            label={t('line.model')}
            {...bind('model')}
            options={models.map(({ id }) => [id, id] as const)}
          />
          <TextField label="max_tokens" type="number" min={1} {...bind('tokens')} />
          <SelectField
            label="custom_id"
            {...bind('idColumn')}
            options={[['', t('new.numbered')], ...table.columns.map((name) => [name, name] as const)]}
          />
        </div>
        <TextField
          label={t('new.schema')}
          {...bind('schema')}
          rows={3}
          mono
          hint={t('new.schemaHint')}
          error={
            badSchema && t('new.badJson', { line: 1, column: badSchema.column, message: badSchema.message })
          }
        />
      </div>
      <div class="stack">
        <h2>{t('new.preview')}</h2>
        {filled.slice(0, 3).map(([content = ''], i) => (
          <CodeBlock text={content} label={ids[i] ?? ''} />
        ))}
        <details class="raw">
          <summary>{t('line.raw')}</summary>
          <CodeBlock text={lines.slice(0, 3).join('\n\n')} label={t('line.raw')} />
        </details>
        <div class="row">
          <Button
            label={t('new.use', { n: lines.length })}
            kind="primary"
            disabled={problem !== null}
            onClick={() => onFile(asFile(lines.join('\n'), 'table.jsonl'))}
          />
          {problem === null ? null : (
            <span class="bad-text" role="status">
              {problem}
            </span>
          )}
        </div>
      </div>
    </div>
  )
}

function EditorForm({ models, onFile }: SourceProps): VNode {
  const model = models[0]?.id ?? SIMULATOR
  const { values, bind } = useDraft('editor', {
    text: [
      lineOf(model, 'line-1', 'Why is the sky blue?'),
      lineOf(model, 'line-2', 'Name three prime numbers.'),
    ].join('\n'),
  })
  const { text } = values
  const error = firstBadLine(text)
  return (
    <div class="stack">
      <TextField label={t('new.editor')} {...bind('text')} rows={10} mono error={error} />
      <div class="row">
        <Button
          label={t('new.useLines')}
          kind="primary"
          disabled={error !== null || text.trim() === ''}
          onClick={() => onFile(asFile(text, 'lines.jsonl'))}
        />
      </div>
    </div>
  )
}

function firstBadLine(text: string): string | null {
  for (const [i, line] of text.split('\n').entries()) {
    if (line.trim() === '') continue
    const place = jsonProblem(line)
    if (place) return t('new.badJson', { line: i + 1, column: place.column, message: place.message })
  }
  return null
}

/** The place and the message where a line stops being JSON; null where it is JSON. */
export function jsonProblem(line: string): { column: number; message: string } | null {
  const at = brokenAt(line)
  return at === null
    ? null
    : { column: at + 1, message: t('new.unexpected', { text: line.slice(at, at + 12) || '…' }) }
}
