// Reads a list of the service page by page.
import type { VNode } from 'preact'
import { useState } from 'preact/hooks'
import type { List } from '../../wire/list.ts'
import { getPage, type Query } from '../api.ts'
import { t } from '../i18n.ts'
import { type Resource, useAction, useResource } from '../resource.ts'
import { Button } from './button.tsx'
import { useSettled } from './filters.tsx'
import { Empty, FailureNotice, Loaded } from './notice.tsx'
import { type Column, Table } from './table.tsx'

const PAGE = 50

interface Pages<T> {
  first: Resource<List<T>>
  /** So far. */
  rows: readonly T[]
  hasMore: boolean
  /** The button that reads on, where the list goes on. */
  more: VNode | null
}

export function usePages<T>(path: string, typed: Query, label = t('showMore')): Pages<T> {
  const query = useSettled(typed)
  const read = (order: Query, signal?: AbortSignal): Promise<List<T>> =>
    getPage<T>(path, { ...query, limit: PAGE, ...order }, signal ? { signal } : {})
  const first = useResource((signal) => read({}, signal), [path, query])
  const [followed, setFollowed] = useState<{ of: unknown; pages: readonly List<T>[] }>({
    of: null,
    pages: [],
  })
  const action = useAction()
  const behind = followed.of === first.data ? followed.pages : []
  const pages = first.data ? [first.data, ...behind] : []
  const next = pages.at(-1)?.next_cursor ?? null
  const readOn = (): void =>
    void action.run(async () => {
      const page = await read({ starting_after: next })
      setFollowed({ of: first.data, pages: [...behind, page] })
    })
  return {
    first,
    rows: pages.flatMap(({ data }) => data),
    hasMore: next !== null,
    more:
      next === null ? null : (
        <div class="more">
          <FailureNotice failure={action.failure} />
          <Button label={label} busy={action.busy} onClick={readOn} />
        </div>
      ),
  }
}

/** A list as a table, with a text if it is empty, and a button that reads the next page. */
export function PagedTable<T extends { id: string }>({
  pages: { first, rows, more },
  label,
  columns,
}: {
  pages: Pages<T>
  label: string
  columns: readonly Column<T>[]
}): VNode {
  return (
    <>
      <Loaded resource={first}>
        {() =>
          rows.length === 0 ? (
            <Empty title={t('nothingFound')} />
          ) : (
            <Table<T> label={label} columns={columns} rows={rows} keyOf={({ id }) => id} />
          )
        }
      </Loaded>
      {more}
    </>
  )
}
