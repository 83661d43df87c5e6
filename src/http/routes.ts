// Every endpoint, one file each.

import { Incoming } from '../intake/incoming.ts'
import { SchemaChecks } from '../tables/schema-checks.ts'
import { Idempotency } from './request/idempotency.ts'
import { ProjectSlots } from './request/project-slots.ts'
import { HeavyReads } from './response/heavy-reads.ts'
import type { RouteDependencies } from './route-dependencies.ts'
import { batchApiWebhookRoute } from './routes/batch-apis/batch-api-webhook.ts'
import { batchLineRoutes } from './routes/batches/batch-lines.ts'
import { batchStatisticsRoutes } from './routes/batches/batch-statistics.ts'
import { cancelBatchRoute } from './routes/batches/cancel-batch.ts'
import { createBatchRoute } from './routes/batches/create-batch.ts'
import { getBatchRoute } from './routes/batches/get-batch.ts'
import { getBatchResultsRoute } from './routes/batches/get-batch-results.ts'
import { listBatchesRoute } from './routes/batches/list-batches.ts'
import { pauseBatchRoutes } from './routes/batches/pause-batch.ts'
import { retryBatchRoute } from './routes/batches/retry-batch.ts'
import { consoleRoutes } from './routes/console/console.ts'
import { rootRoute } from './routes/console/root.ts'
import { type CountCall, consoleSessionRoutes } from './routes/console/session.ts'
import { getEventRoute } from './routes/events/get-event.ts'
import { listEventsRoute } from './routes/events/list-events.ts'
import { deleteFileRoute } from './routes/files/delete-file.ts'
import { getFileRoute } from './routes/files/get-file.ts'
import { getFileContentRoute } from './routes/files/get-file-content.ts'
import { listFilesRoute } from './routes/files/list-files.ts'
import { uploadFileRoute } from './routes/files/upload-file.ts'
import { keyRoutes } from './routes/keys/keys.ts'
import { createLimitRoute } from './routes/limits/create-limit.ts'
import { deleteLimitRoute } from './routes/limits/delete-limit.ts'
import { getLimitRoute } from './routes/limits/get-limit.ts'
import { listLimitsRoute } from './routes/limits/list-limits.ts'
import { updateLimitRoute } from './routes/limits/update-limit.ts'
import { liveRoute } from './routes/live/live.ts'
import { getModelRoute } from './routes/models/get-model.ts'
import { listModelsRoute } from './routes/models/list-models.ts'
import { pauseModelRoutes } from './routes/models/pause-model.ts'
import { configSchemaRoute } from './routes/operations/config-schema.ts'
import { docsRoutes } from './routes/operations/docs.ts'
import { healthRoutes } from './routes/operations/health.ts'
import { metricsRoute } from './routes/operations/metrics.ts'
import { openapiRoute } from './routes/operations/openapi.ts'
import { projectRoutes } from './routes/projects/projects.ts'
import { getQuotasRoute } from './routes/quotas/get-quotas.ts'
import { getRequestRoute } from './routes/requests/get-request.ts'
import { listRequestsRoute } from './routes/requests/list-requests.ts'
import { settingsRoute } from './routes/settings/settings.ts'
import { statusRoute } from './routes/status/status.ts'
import { addUploadPartRoute } from './routes/uploads/add-upload-part.ts'
import { cancelUploadRoute } from './routes/uploads/cancel-upload.ts'
import { completeUploadRoute } from './routes/uploads/complete-upload.ts'
import { createUploadRoute } from './routes/uploads/create-upload.ts'
import { getUploadRoute } from './routes/uploads/get-upload.ts'
import { listUploadPartsRoute } from './routes/uploads/list-upload-parts.ts'
import { listUploadsRoute } from './routes/uploads/list-uploads.ts'
import { getUsageRoute } from './routes/usage/get-usage.ts'
import { createWebhookRoute } from './routes/webhooks/create-webhook.ts'
import { deleteWebhookRoute } from './routes/webhooks/delete-webhook.ts'
import { getWebhookRoute } from './routes/webhooks/get-webhook.ts'
import { listDeliveriesRoute } from './routes/webhooks/list-deliveries.ts'
import { listWebhooksRoute } from './routes/webhooks/list-webhooks.ts'
import { replayDeliveriesRoute } from './routes/webhooks/replay-deliveries.ts'
import { rotateWebhookSecretRoute } from './routes/webhooks/rotate-webhook-secret.ts'
import { testWebhookRoute } from './routes/webhooks/test-webhook.ts'
import { updateWebhookRoute } from './routes/webhooks/update-webhook.ts'
import type { App } from './type-provider.ts'

/** At once in one process. A download keeps a connection to a bucket open (blobs/s3/), and both keep some memory. */
const DOWNLOADS_MAX = 256
const STREAMS_MAX = 1_000

export function addRoutes(app: App, deps: RouteDependencies & { countCall: CountCall }): void {
  const incoming = new Incoming(deps.store, deps.incomingMemory)
  const reads = new HeavyReads()
  const downloads = new ProjectSlots('downloads', DOWNLOADS_MAX)
  const streams = new ProjectSlots('streams', STREAMS_MAX)
  const idempotency = new Idempotency(deps.store, deps.clock)
  uploadFileRoute(app, { ...deps, idempotency, incoming })
  listFilesRoute(app, deps)
  getFileRoute(app, deps)
  getFileContentRoute(app, { ...deps, downloads })
  deleteFileRoute(app, deps)
  createUploadRoute(app, { ...deps, incoming })
  listUploadsRoute(app, deps)
  getUploadRoute(app, deps)
  addUploadPartRoute(app, { ...deps, incoming })
  listUploadPartsRoute(app, deps)
  completeUploadRoute(app, { ...deps, incoming })
  cancelUploadRoute(app, deps)
  createBatchRoute(app, { ...deps, idempotency })
  listBatchesRoute(app, deps)
  getBatchRoute(app, deps)
  getBatchResultsRoute(app, { ...deps, checks: new SchemaChecks(), reads })
  liveRoute(app, { ...deps, streams })
  retryBatchRoute(app, { ...deps, idempotency, incoming })
  batchLineRoutes(app, { ...deps, reads })
  batchStatisticsRoutes(app, deps)
  cancelBatchRoute(app, deps)
  pauseBatchRoutes(app, deps)
  listModelsRoute(app, deps)
  getModelRoute(app, deps)
  pauseModelRoutes(app, deps)
  listRequestsRoute(app, deps)
  getRequestRoute(app, { ...deps, reads })
  keyRoutes(app, deps)
  projectRoutes(app, deps)
  settingsRoute(app, deps)
  statusRoute(app, deps)
  getQuotasRoute(app, { ...deps, incoming, downloads, streams })
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
  testWebhookRoute(app, deps)
  batchApiWebhookRoute(app, deps)
  rootRoute(app)
  consoleRoutes(app, deps)
  consoleSessionRoutes(app, deps)
  healthRoutes(app, deps)
  if (deps.metrics && deps.metrics_elsewhere !== true) metricsRoute(app, deps.metrics, deps.clock)
  openapiRoute(app)
  configSchemaRoute(app)
  docsRoutes(app)
}
