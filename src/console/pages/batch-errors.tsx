// Lists the error groups of a batch, the largest first, each with advice, its lines, and a retry of these lines.
import type { VNode } from 'preact'
import type { BatchObject } from '../../wire/batch.ts'
import type { BatchErrors } from '../../wire/batch-line.ts'
import { get } from '../api.ts'
import { count, percent } from '../format.ts'
import { adviceOn, t } from '../i18n.ts'
import { ended } from '../live.ts'
import { TextButton } from '../parts/button.tsx'
import { Loaded } from '../parts/notice.tsx'
import { Section } from '../parts/page.tsx'
import { failedText, lineCounts } from '../parts/status.tsx'
import { Words } from '../parts/text.tsx'
import { type Resource, useResource } from '../resource.ts'
import { href, replaceQuery } from '../router.ts'
import { may } from '../session.ts'
import { mayRetryCode, RetryButton } from './batch-actions.tsx'

/** Reads the errors of a batch; null where no line has failed. */
export function useErrors(batch: BatchObject | null): Resource<BatchErrors | null> {
  const failed = batch?.request_counts.failed ?? 0
  // While the batch runs, errors are read again when they have grown by a fifth, and at the end.
  const step = batch && ended(batch) ? 'ended' : Math.floor(Math.log2(failed + 1) * 4)
  return useResource(
    async (signal) =>
      batch && failed > 0 ? await get<BatchErrors>(`/v1/batches/${batch.id}/errors`, {}, { signal }) : null,
    [batch?.id ?? null, step, failed > 0],
  )
}

type Group = BatchErrors['groups'][number]

type ErrorGroupsProps = { batch: BatchObject; errors: Resource<BatchErrors | null> }

export function ErrorGroups({ batch, errors }: ErrorGroupsProps): VNode {
  const { failed, notRun } = lineCounts(batch)
  return (
    <Section title={t('errors.title')} aside={failedText(failed, notRun)}>
      <Loaded resource={errors} rows={2}>
        {(data) => (
          <ul class="error-groups">
            {data?.groups.map((group) => (
              <GroupRow batch={batch} group={group} all={data.failed} key={group.code + group.pattern} />
            ))}
            {data && data.other > 0 ? <li class="muted">{t('errors.other', { n: data.other })}</li> : null}
          </ul>
        )}
      </Loaded>
    </Section>
  )
}

function GroupRow({ batch, group, all }: { batch: BatchObject; group: Group; all: number }): VNode {
  const show = (): void => {
    replaceQuery({ status: 'failed', code: group.code, message: group.pattern, search: null })
    const lines = document.getElementById('lines')
    lines?.scrollIntoView({ block: 'start' })
    lines?.focus({ preventScroll: true })
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
          <code class="code">{group.code}</code>{' '}
          <span class="error-message">
            <Words text={group.message} />
          </span>
        </div>
        <div class="muted">
          <Words text={adviceOn(group.code, group.advice)} />{' '}
          {group.code === 'usage_limit_exceeded' && may('limits:read') ? (
            <a href={href('/limits')}>{t('nav.limits')}</a>
          ) : null}
        </div>
      </div>
      <div class="row error-actions">
        <TextButton label={t('errors.show')} onClick={show} />
        {!mayRetryCode(group.code) ? null : (
          <RetryButton
            batch={batch}
            which={{ codes: [group.code], ...(group.pattern === null ? {} : { message: group.pattern }) }}
            lines={group.lines}
            quiet
          />
        )}
      </div>
    </li>
  )
}
