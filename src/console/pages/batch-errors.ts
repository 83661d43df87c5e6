// Why lines failed: the groups of a batch's errors, the largest first, each with what to do, its lines, and a retry of
// exactly these.
import type { BatchObject } from '../../wire/batch.ts'
import type { BatchErrors } from '../../wire/batch-line.ts'
import { get } from '../api.ts'
import { count, percent } from '../format.ts'
import { h, type View } from '../h.ts'
import { t } from '../i18n.ts'
import { ended } from '../live.ts'
import { FailureNotice, Loading } from '../parts/notice.ts'
import { Section } from '../parts/page.ts'
import { visibleText } from '../parts/text.ts'
import { useResource } from '../resource.ts'
import { replaceQuery } from '../router.ts'
import { RetryButton } from './batch-actions.ts'

type Group = BatchErrors['groups'][number]

export function ErrorGroups({ batch }: { batch: BatchObject }): View {
  const { failed } = batch.request_counts
  // While it runs, again with each doubling and in the end: every new failure is not worth a question.
  const step = ended(batch) ? 'ended' : Math.floor(Math.log2(failed + 1) * 4)
  const errors = useResource(
    (signal) => get<BatchErrors>(`/v1/batches/${batch.id}/errors`, {}, { signal }),
    [batch.id, step],
  )
  const data = errors.data
  return h(
    Section,
    { title: t('errors.title'), aside: data ? t('errors.lines', { n: data.failed }) : null },
    [
      h(FailureNotice, { failure: errors.failure, retry: errors.reload }),
      !data
        ? errors.failure
          ? null
          : h(Loading, { rows: 2 })
        : h('ul', { class: 'error-groups' }, [
            ...data.groups.map((group) =>
              h(GroupRow, { batch, group, all: data.failed, key: group.code + group.pattern }),
            ),
            data.other > 0 ? h('li', { class: 'muted' }, t('errors.other', { n: data.other })) : null,
          ]),
    ],
  )
}

function GroupRow({ batch, group, all }: { batch: BatchObject; group: Group; all: number }): View {
  const show = (): void => {
    replaceQuery({ status: 'failed', code: group.code, message: group.pattern, custom_id: null })
    document.getElementById('lines')?.scrollIntoView({ block: 'start' })
  }
  return h('li', { class: 'error-group' }, [
    h('div', { class: 'error-count', title: percent(group.lines, all) }, [
      h('strong', null, count(group.lines)),
      h(
        'div',
        { class: 'error-share' },
        h('div', { style: { width: `${(group.lines / Math.max(all, 1)) * 100}%` } }),
      ),
    ]),
    h('div', { class: 'error-what' }, [
      h('div', null, [
        h('code', { class: 'code' }, group.code),
        ' ',
        h('span', { class: 'error-message' }, visibleText(group.message)),
      ]),
      h('div', { class: 'muted' }, group.advice),
    ]),
    h('div', { class: 'row error-actions' }, [
      h('button', { type: 'button', class: 'link', onClick: show }, t('errors.show')),
      h(RetryButton, {
        batch,
        which: { codes: [group.code], ...(group.pattern === null ? {} : { message: group.pattern }) },
        quiet: true,
      }),
    ]),
  ])
}
