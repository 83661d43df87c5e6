// DELETE /v1/webhooks/{webhook_id}
import { ApiError } from '../../../domain/errors.ts'
import { deleteWebhook, lockWebhook } from '../../../store/webhooks.ts'
import { DeletedWebhook } from '../../../wire/webhook.ts'
import { callerOf } from '../../access/caller.ts'
import { WebhookParams } from '../../request/params.ts'
import { route } from '../../route.ts'
import type { RouteDependencies } from '../../route-dependencies.ts'
import type { App } from '../../type-provider.ts'

export function deleteWebhookRoute(app: App, { store }: Pick<RouteDependencies, 'store'>): void {
  route(app, {
    method: 'DELETE',
    url: '/v1/webhooks/:webhook_id',
    access: ['webhooks:write'],
    doc: {
      operation: 'deleteWebhook',
      summary: 'Delete a webhook and its deliveries',
      answer: DeletedWebhook,
      errors: ['webhook_not_found'],
    },
    accepts: { params: WebhookParams },
    async handler(request) {
      const { project_id } = callerOf(request)
      const id = request.params.webhook_id
      await store.write(async (tx) => {
        if (!(await lockWebhook(tx, project_id, id))) throw new ApiError('webhook_not_found')
        await deleteWebhook(tx, id)
      })
      return { id, object: 'webhook', deleted: true }
    },
  })
}
