// Shows the answers of a batch as a table, which loads more rows as it is scrolled.
import type { VNode } from 'preact'
import { useCallback, useEffect, useMemo, useState } from 'preact/hooks'
import type { BatchObject } from '../../wire/batch.ts'
import { type AnswerRow, answerRow } from '../answer-columns.ts'
import type { ApiFailure } from '../api.ts'
import { parseExact } from '../exact-json.ts'
import { count } from '../format.ts'
import { t } from '../i18n.ts'
import { readResults } from '../line-pages.ts'
import { LongTable } from '../parts/long-table.tsx'
import { FailureNotice } from '../parts/notice.tsx'
import type { Column } from '../parts/table.tsx'
import { href } from '../router.ts'

const PAGE_LINES = 200

class AnswerPages {
  readonly #batchId: string
  readonly #columns: readonly string[]
  readonly #onChange: () => void
  readonly #abort = new AbortController()
  #next: string | null = '0'
  #reading = false
  rows: AnswerRow[] = []
  failure: ApiFailure | null = null

  constructor(batchId: string, columns: readonly string[], onChange: () => void) {
    this.#batchId = batchId
    this.#columns = columns
    this.#onChange = onChange
  }

  get hasMore(): boolean {
    return this.#next !== null
  }

  /** Reads on until there are rows up to `to`, or no more. */
  async need(to: number): Promise<void> {
    if (this.#reading) return
    this.#reading = true
    try {
      while (this.#next !== null && this.rows.length < to) {
        const page = { after: this.#next, limit: PAGE_LINES }
        const { lines, next } = await readResults(this.#batchId, page, this.#abort.signal)
        this.rows = [...this.rows, ...lines.map((line) => answerRow(parseExact(line), this.#columns))]
        this.#next = next
        this.failure = null
        this.#onChange()
      }
    } catch (error) {
      if (this.#abort.signal.aborted) return
      this.failure = error as ApiFailure
      this.#onChange()
    } finally {
      this.#reading = false
    }
  }

  end(): void {
    this.#abort.abort()
  }
}

export function AnswerTable({ batch, columns }: { batch: BatchObject; columns: readonly string[] }): VNode {
  const [, redraw] = useState({})
  const pages = useMemo(
    () => new AnswerPages(batch.id, columns, () => redraw({})),
    [batch.id, columns.join('\n')],
  )
  useEffect(() => {
    void pages.need(1)
    return () => pages.end()
  }, [pages])
  const onSight = useCallback((_from: number, to: number) => void pages.need(to), [pages])
  const table: Column<AnswerRow>[] = [
    { title: '#', width: '4rem', minor: true, cell: ({ line }) => <span class="muted">{count(line)}</span> },
    {
      title: 'custom_id',
      main: true,
      cell: ({ line, custom_id }) => (
        <a class="row-link mono" href={href(`/batches/${batch.id}/lines/${line}`)} title={custom_id}>
          {custom_id}
        </a>
      ),
    },
    ...columns.map((title, i) => ({
      title,
      grow: 1.75,
      minor: i >= 2,
      cell: ({ cells, error }: AnswerRow) =>
        error === null ? (
          <span title={cells[i]}>{cells[i]}</span>
        ) : i === 0 ? (
          <span class="bad-text whole" title={error}>
            {error}
          </span>
        ) : null,
    })),
  ]
  return (
    <div class="stack tight">
      <FailureNotice failure={pages.failure} retry={() => void pages.need(pages.rows.length + 1)} />
      <LongTable<AnswerRow>
        label={t('lines.answers')}
        columns={table}
        total={pages.rows.length + (pages.hasMore ? 1 : 0)}
        rowAt={(index) => pages.rows[index] ?? null}
        onSight={onSight}
      />
    </div>
  )
}
