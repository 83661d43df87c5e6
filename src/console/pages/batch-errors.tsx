// Why lines failed: the groups of a batch's errors, the largest first, each with what to do, its lines, and a retry of
// exactly these.

import type { VNode } from 'preact'
import type { BatchObject } from '../../wire/batch.ts'
import type { BatchErrors } from '../../wire/batch-line.ts'
import { get } from '../api.ts'
import { count, percent } from '../format.ts'
import { t } from '../i18n.ts'
import { ended } from '../live.ts'
import { Loaded } from '../parts/loaded.tsx'
import { Section } from '../parts/page.tsx'
import { useResource } from '../resource.ts'
import { replaceQuery } from '../router.ts'
import { RetryButton } from './batch-actions.tsx'

/** Errors of the request itself: sent again as it is, it ends the same way. */
const NO_USE = new Set(['content_filter', 'context_length_exceeded'])

type Group = BatchErrors['groups'][number]

export function ErrorGroups({ batch }: { batch: BatchObject }): VNode {
  const { failed } = batch.request_counts
  // While it runs, again with each doubling and in the end: every new failure is not worth a question.
  const step = ended(batch) ? 'ended' : Math.floor(Math.log2(failed + 1) * 4)
  const errors = useResource(
    (signal) => get<BatchErrors>(`/v1/batches/${batch.id}/errors`, {}, { signal }),
    [batch.id, step],
  )
  const data = errors.data
  return (
    <Section title={t('errors.title')} aside={data ? t('errors.lines', { n: data.failed }) : null}>
      <Loaded resource={errors} rows={2}>
        {({ groups, failed, other }) => (
          <ul class="error-groups">
            {groups.map((group) => (
              <GroupRow batch={batch} group={group} all={failed} key={group.code + group.pattern} />
            ))}
            {other > 0 ? <li class="muted">{t('errors.other', { n: other })}</li> : null}
          </ul>
        )}
      </Loaded>
    </Section>
  )
}

function GroupRow({ batch, group, all }: { batch: BatchObject; group: Group; all: number }): VNode {
  const show = (): void => {
    replaceQuery({ status: 'failed', code: group.code, message: group.pattern, custom_id: null })
    document.getElementById('lines')?.scrollIntoView({ block: 'start' })
  }
  return (
    <li class="error-group">
      <div class="error-count" title={percent(group.lines, all)}>
        <strong>{count(group.lines)}</strong>
        <div class="error-share">
          <div style={{ width: `${(group.lines / Math.max(all, 1)) * 100}%` }} />
        </div>
      </div>
      <div class="error-what">
        <div>
          <code class="code">{group.code}</code> <span class="error-message">{group.message}</span>
        </div>
        <div class="muted">{group.advice}</div>
      </div>
      <div class="row error-actions">
        <button type="button" class="link" onClick={show}>
          {t('errors.show')}
        </button>
        {NO_USE.has(group.code) ? null : (
          <RetryButton
            batch={batch}
            which={{ codes: [group.code], ...(group.pattern === null ? {} : { message: group.pattern }) }}
            quiet
          />
        )}
      </div>
    </li>
  )
}
