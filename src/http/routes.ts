// Every endpoint, one file each.
import { Idempotency } from './idempotency.ts'
import { cancelBatchRoute } from './routes/cancel-batch.ts'
import { createBatchRoute } from './routes/create-batch.ts'
import { createLimitRoute } from './routes/create-limit.ts'
import { createWebhookRoute } from './routes/create-webhook.ts'
import { deleteFileRoute } from './routes/delete-file.ts'
import { deleteLimitRoute } from './routes/delete-limit.ts'
import { deleteWebhookRoute } from './routes/delete-webhook.ts'
import { docsRoutes } from './routes/docs.ts'
import { getBatchRoute } from './routes/get-batch.ts'
import { getBatchResultsRoute } from './routes/get-batch-results.ts'
import { getEventRoute } from './routes/get-event.ts'
import { getFileRoute } from './routes/get-file.ts'
import { getFileContentRoute } from './routes/get-file-content.ts'
import { getLimitRoute } from './routes/get-limit.ts'
import { getModelRoute } from './routes/get-model.ts'
import { getQuotasRoute } from './routes/get-quotas.ts'
import { getRequestRoute } from './routes/get-request.ts'
import { getUsageRoute } from './routes/get-usage.ts'
import { getWebhookRoute } from './routes/get-webhook.ts'
import { healthRoutes } from './routes/health.ts'
import { listBatchesRoute } from './routes/list-batches.ts'
import { listDeliveriesRoute } from './routes/list-deliveries.ts'
import { listEventsRoute } from './routes/list-events.ts'
import { listFilesRoute } from './routes/list-files.ts'
import { listLimitsRoute } from './routes/list-limits.ts'
import { listModelsRoute } from './routes/list-models.ts'
import { listWebhooksRoute } from './routes/list-webhooks.ts'
import { metricsRoute } from './routes/metrics.ts'
import { openapiRoute } from './routes/openapi.ts'
import { replayDeliveriesRoute } from './routes/replay-deliveries.ts'
import { rotateWebhookSecretRoute } from './routes/rotate-webhook-secret.ts'
import { updateLimitRoute } from './routes/update-limit.ts'
import { updateWebhookRoute } from './routes/update-webhook.ts'
import { uploadFileRoute } from './routes/upload-file.ts'
import type { ServerDeps } from './server.ts'
import type { App } from './type-provider.ts'
import { UploadSlots } from './upload-slots.ts'

export function addRoutes(app: App, deps: ServerDeps): void {
  const uploads = new UploadSlots()
  const idempotency = new Idempotency(deps.store, deps.clock)
  uploadFileRoute(app, { ...deps, idempotency, uploads })
  listFilesRoute(app, deps)
  getFileRoute(app, deps)
  getFileContentRoute(app, deps)
  deleteFileRoute(app, deps)
  createBatchRoute(app, { ...deps, idempotency })
  listBatchesRoute(app, deps)
  getBatchRoute(app, deps)
  getBatchResultsRoute(app, deps)
  cancelBatchRoute(app, deps)
  listModelsRoute(app, deps)
  getModelRoute(app, deps)
  getRequestRoute(app, deps)
  getQuotasRoute(app, { ...deps, uploads })
  createLimitRoute(app, { ...deps, idempotency })
  listLimitsRoute(app, deps)
  getLimitRoute(app, deps)
  updateLimitRoute(app, deps)
  deleteLimitRoute(app, deps)
  getUsageRoute(app, deps)
  listEventsRoute(app, deps)
  getEventRoute(app, deps)
  createWebhookRoute(app, deps)
  listWebhooksRoute(app, deps)
  getWebhookRoute(app, deps)
  updateWebhookRoute(app, deps)
  deleteWebhookRoute(app, deps)
  rotateWebhookSecretRoute(app, deps)
  listDeliveriesRoute(app, deps)
  replayDeliveriesRoute(app, deps)
  healthRoutes(app, deps)
  if (deps.metrics && deps.metrics_elsewhere !== true) metricsRoute(app, deps.metrics)
  openapiRoute(app)
  docsRoutes(app)
}
