// Adds every endpoint to the server, from one file for each resource.
import { Incoming } from '../intake/incoming.ts'
import { SchemaChecks } from '../tables/schema-checks.ts'
import { Idempotency } from './request/idempotency.ts'
import { HeavyReads, ProjectSlots } from './response/heavy-reads.ts'
import type { App, RouteDependencies } from './route.ts'
import { batchApiWebhookRoute } from './routes/batch-api-webhook.ts'
import { batchLineRoutes, batchStatisticsRoutes } from './routes/batch-lines.ts'
import { batchResultsRoute } from './routes/batch-results.ts'
import { batchRoutes } from './routes/batches.ts'
import { consoleRoutes, rootRoute } from './routes/console/console.ts'
import { type CountCall, consoleSessionRoutes } from './routes/console/session.ts'
import { createBatchRoutes } from './routes/create-batch.ts'
import { fileContentRoute, fileRoutes } from './routes/files.ts'
import { keyRoutes } from './routes/keys.ts'
import { limitRoutes } from './routes/limits.ts'
import { liveRoute } from './routes/live.ts'
import { messageBatchRoutes } from './routes/message-batches.ts'
import { modelRoutes } from './routes/models.ts'
import { configSchemaRoute, docsRoutes, openapiRoute } from './routes/openapi.ts'
import { projectRoutes, quotaRoute } from './routes/projects.ts'
import { requestRoutes } from './routes/requests.ts'
import { healthRoutes, metricsRoute, statusRoutes } from './routes/status.ts'
import { uploadRoutes } from './routes/uploads.ts'
import { usageRoutes } from './routes/usage.ts'
import { eventRoutes, webhookRoutes } from './routes/webhooks.ts'

/** At once in one process. A download keeps a connection to a bucket open (blobs/s3/), and both keep some memory. */
const DOWNLOADS_MAX = 256
const STREAMS_MAX = 1_000

export function addRoutes(app: App, deps: RouteDependencies & { countCall: CountCall }): void {
  const incoming = new Incoming(deps.store, deps.incomingMemory)
  const reads = new HeavyReads()
  const downloads = new ProjectSlots('downloads', DOWNLOADS_MAX)
  const streams = new ProjectSlots('streams', STREAMS_MAX)
  const idempotency = new Idempotency(deps.store, deps.clock)
  fileRoutes(app, { ...deps, idempotency, incoming })
  fileContentRoute(app, { ...deps, downloads })
  uploadRoutes(app, { ...deps, incoming })
  createBatchRoutes(app, { ...deps, idempotency, incoming, reads })
  batchRoutes(app, { ...deps, reads })
  messageBatchRoutes(app, { ...deps, reads })
  batchResultsRoute(app, { ...deps, checks: new SchemaChecks(), reads })
  liveRoute(app, { ...deps, streams })
  batchLineRoutes(app, { ...deps, reads })
  batchStatisticsRoutes(app, deps)
  modelRoutes(app, deps)
  requestRoutes(app, { ...deps, reads })
  keyRoutes(app, deps)
  projectRoutes(app, deps)
  statusRoutes(app, deps)
  quotaRoute(app, { ...deps, incoming, downloads, streams })
  limitRoutes(app, { ...deps, idempotency })
  usageRoutes(app, { ...deps, reads })
  eventRoutes(app, deps)
  webhookRoutes(app, deps)
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
