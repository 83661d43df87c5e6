// Every endpoint, one file each.
import { Idempotency } from './idempotency.ts'
import { cancelBatchRoute } from './routes/cancel-batch.ts'
import { createBatchRoute } from './routes/create-batch.ts'
import { deleteFileRoute } from './routes/delete-file.ts'
import { getBatchRoute } from './routes/get-batch.ts'
import { getFileRoute } from './routes/get-file.ts'
import { getFileContentRoute } from './routes/get-file-content.ts'
import { getModelRoute } from './routes/get-model.ts'
import { getRequestRoute } from './routes/get-request.ts'
import { healthRoutes } from './routes/health.ts'
import { listBatchesRoute } from './routes/list-batches.ts'
import { listFilesRoute } from './routes/list-files.ts'
import { listModelsRoute } from './routes/list-models.ts'
import { metricsRoute } from './routes/metrics.ts'
import { openapiRoute } from './routes/openapi.ts'
import { uploadFileRoute } from './routes/upload-file.ts'
import type { ServerDeps } from './server.ts'
import type { App } from './type-provider.ts'

export function addRoutes(app: App, deps: ServerDeps): void {
  uploadFileRoute(app, deps)
  listFilesRoute(app, deps)
  getFileRoute(app, deps)
  getFileContentRoute(app, deps)
  deleteFileRoute(app, deps)
  createBatchRoute(app, { ...deps, idempotency: new Idempotency(deps.store, deps.clock) })
  listBatchesRoute(app, deps)
  getBatchRoute(app, deps)
  cancelBatchRoute(app, deps)
  listModelsRoute(app, deps)
  getModelRoute(app, deps)
  getRequestRoute(app, deps)
  healthRoutes(app, deps)
  if (deps.metrics) metricsRoute(app, deps.metrics)
  openapiRoute(app)
}
