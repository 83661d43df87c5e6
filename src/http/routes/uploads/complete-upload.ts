// POST /v1/uploads/{upload_id}/complete
import { type Completed, UploadCompletions } from '../../../intake/complete-upload.ts'
import type { Incoming } from '../../../intake/incoming.ts'
import { CompleteUpload, UploadObject } from '../../../wire/upload.ts'
import { callerOf, planOf } from '../../access/caller.ts'
import { viewOf } from '../../access/compat.ts'
import { UploadParams } from '../../request/params.ts'
import { whileConnected } from '../../request/while-connected.ts'
import { route } from '../../route.ts'
import type { RouteDependencies } from '../../route-dependencies.ts'
import type { App } from '../../type-provider.ts'
import { showUpload } from './show-upload.ts'

type Deps = Pick<
  RouteDependencies,
  'store' | 'sealed' | 'clock' | 'region' | 'plans' | 'file_bytes_max' | 'streamingValidation' | 'wake'
> & { incoming: Incoming }

export function completeUploadRoute(app: App, deps: Deps): void {
  const { region, plans, file_bytes_max, wake } = deps
  const completions = new UploadCompletions(deps)
  route(app, {
    method: 'POST',
    url: '/v1/uploads/:upload_id/complete',
    access: ['files:write'],
    doc: {
      operation: 'completeUpload',
      summary: 'Make a file of an upload',
      description:
        'Of its parts in the given order. The file is validated like any other. A call that is repeated is answered with the same file; while one runs, a call that asks for something else is rejected.',
      answer: UploadObject,
      errors: [
        'upload_not_found',
        'upload_not_pending',
        'upload_completing',
        'upload_mismatch',
        'quota_exceeded',
      ],
    },
    accepts: { params: UploadParams, body: CompleteUpload },
    async handler(request) {
      const caller = callerOf(request)
      const { project_id } = caller
      const { quotas, file_retention_ms: retention_ms } = planOf(plans, caller)
      const { part_ids, md5 = null } = request.body
      const { upload, file } = await whileConnected(
        request,
        (signal): Promise<Completed> =>
          completions.complete(
            { project_id, quotas },
            request.params.upload_id,
            { part_ids, md5 },
            { retention_ms, file_bytes_max },
            signal,
          ),
      )
      wake()
      return showUpload(upload, viewOf(request, region), file)
    },
  })
}
