// The page of a project without a batch shows an example file, and the five calls that run it.
import type { VNode } from 'preact'
import type { List } from '../../wire/list.ts'
import type { ModelObject } from '../../wire/model.ts'
import { t } from '../i18n.ts'
import { CopyButton, LinkButton } from '../parts/button.tsx'
import { useGet } from '../resource.ts'
import { href } from '../router.ts'
import { SIMULATOR } from './new-batch-source.tsx'

export function FirstBatch(): VNode {
  const calls = fiveCalls(location.origin)
  const models = useGet<List<ModelObject>>('/v1/models')
  const simulated = models.data?.data.some(({ id }) => id === SIMULATOR)
  return (
    <div class="empty wide">
      <h2>{t('first.title')}</h2>
      <p>{t('first.text')}</p>
      <div class="row">
        <LinkButton label={t('nav.new')} href={href('/new')} icon="new" kind="primary" />
        <LinkButton
          label={t(simulated ? 'first.simulated' : 'first.example')}
          href={`${href('/new')}?example=1`}
          icon="play"
        />
      </div>
      <div class="section-head">
        <h3>{t('first.calls')}</h3>
        <CopyButton text={calls} />
      </div>
      <pre class="code-block" tabIndex={0} role="region" aria-label={t('first.calls')}>
        {calls}
      </pre>
    </div>
  )
}

function fiveCalls(base: string): string {
  return `# 1. ${t('first.call1')}
curl ${base}/v1/files -H "Authorization: Bearer $KEY" -F purpose=batch -F file=@input.jsonl
# 2. ${t('first.call2')}
curl ${base}/v1/files/$FILE -H "Authorization: Bearer $KEY"
# 3. ${t('first.call3')}
curl ${base}/v1/batches -H "Authorization: Bearer $KEY" -H 'Content-Type: application/json' \\
  -d '{"input_file_id": "'$FILE'", "endpoint": "/v1/chat/completions", "completion_window": "24h"}'
# 4. ${t('first.call4')}
curl ${base}/v1/batches/$BATCH -H "Authorization: Bearer $KEY"
# 5. ${t('first.call5')}
curl ${base}/v1/files/$OUTPUT/content -H "Authorization: Bearer $KEY" -o answers.jsonl`
}
