// POST /v1/uploads/{upload_id}/complete
import { ApiError } from '../../../domain/errors.ts'
import { completeUpload } from '../../../intake/upload-parts.ts'
import { readUpload } from '../../../store/uploads.ts'
import { CompleteUpload, UploadObject } from '../../../wire/upload.ts'
import { callerOf, planOf } from '../../access/caller.ts'
import { viewOf } from '../../access/compat.ts'
import { UploadParams } from '../../request/params.ts'
import { route } from '../../route.ts'
import type { RouteDependencies } from '../../route-dependencies.ts'
import type { App } from '../../type-provider.ts'
import { showUpload } from './show-upload.ts'

type Deps = Pick<
  RouteDependencies,
  'store' | 'sealed' | 'clock' | 'region' | 'plans' | 'file_bytes_max' | 'streamingValidation' | 'wake'
>

export function completeUploadRoute(app: App, deps: Deps): void {
  const { store, clock, region, plans, file_bytes_max, wake } = deps
  /** By upload: a call that a client repeats waits for the first one. */
  const running = new Map<string, Promise<unknown>>()
  route(app, {
    method: 'POST',
    url: '/v1/uploads/:upload_id/complete',
    access: ['files:write'],
    doc: {
      operation: 'completeUpload',
      summary: 'Make a file of an upload',
      description:
        'Of its parts in the given order. The file is validated like any other. A call that is repeated is answered with the same file.',
      answer: UploadObject,
      errors: ['upload_not_found', 'upload_not_pending', 'upload_mismatch', 'quota_exceeded'],
    },
    accepts: { params: UploadParams, body: CompleteUpload },
    async handler(request) {
      const caller = callerOf(request)
      const { project_id } = caller
      const { quotas, file_retention_ms } = planOf(plans, caller)
      const found = await readUpload(store.read, project_id, request.params.upload_id, clock.now())
      if (!found) throw new ApiError('upload_not_found')
      await running.get(found.id)?.catch(() => {})
      const { part_ids, md5 = null } = request.body
      const rules = { retention_ms: file_retention_ms, file_bytes_max, now: clock.now() }
      const completion = completeUpload(deps, { project_id, quotas }, found, { part_ids, md5 }, rules)
      running.set(found.id, completion)
      try {
        const { upload, file } = await completion
        wake()
        return showUpload(upload, viewOf(request, region), file)
      } finally {
        if (running.get(found.id) === completion) running.delete(found.id)
      }
    },
  })
}
