// Adds every endpoint to the server, from one file for each resource.
import { Incoming } from '../intake/incoming.ts'
import { Idempotency } from './request/idempotency.ts'
import { HeavyReads, ProjectSlots } from './response/long-calls.ts'
import type { App, RouteDependencies, ServiceDependencies } from './route.ts'
import { applyRoute } from './routes/apply.ts'
import { BatchCreation } from './routes/batch-creation.ts'
import { batchLineRoutes, batchStatisticsRoutes } from './routes/batch-lines.ts'
import { batchResultsRoute } from './routes/batch-results.ts'
import { batchRoutes } from './routes/batches.ts'
import { consoleRoutes, rootRoute } from './routes/console/console.ts'
import { consoleSessionRoutes } from './routes/console/session.ts'
import { createBatchRoute } from './routes/create-batch.ts'
import { estimateRoute } from './routes/estimate-batch.ts'
import { fileContentRoute, fileRoutes } from './routes/files.ts'
import { keyRoutes } from './routes/keys.ts'
import { limitRoutes } from './routes/limits.ts'
import { liveRoute } from './routes/live.ts'
import { messageBatchRoutes } from './routes/message-batches.ts'
import { modelRoutes } from './routes/models.ts'
import { configSchemaRoute, docsRoutes, openapiRoute } from './routes/openapi.ts'
import { projectRoutes, quotaRoute } from './routes/projects.ts'
import { requestRoutes } from './routes/requests.ts'
import { retryRoute } from './routes/retry-batch.ts'
import { singleRequestRoutes } from './routes/single-requests.ts'
import { healthRoutes, metricsRoute, statusRoutes } from './routes/status.ts'
import { uploadRoutes } from './routes/uploads.ts'
import { usageRoutes } from './routes/usage.ts'
import { batchApiWebhookRoute, eventRoutes, webhookRoutes } from './routes/webhooks.ts'

/** The most concurrent downloads of a process: each keeps a connection to a bucket (blobs/s3/) and some memory. */
const DOWNLOADS_MAX = 256
const STREAMS_MAX = 1_000

/** The functions that add the endpoints, in the order of the reference. */
const ROUTES: readonly ((app: App, deps: RouteDependencies, creation: BatchCreation) => void)[] = [
  fileRoutes,
  fileContentRoute,
  uploadRoutes,
  createBatchRoute,
  estimateRoute,
  retryRoute,
  batchRoutes,
  messageBatchRoutes,
  batchResultsRoute,
  liveRoute,
  batchLineRoutes,
  batchStatisticsRoutes,
  modelRoutes,
  requestRoutes,
  singleRequestRoutes,
  keyRoutes,
  projectRoutes,
  applyRoute,
  statusRoutes,
  quotaRoute,
  limitRoutes,
  usageRoutes,
  eventRoutes,
  webhookRoutes,
  batchApiWebhookRoute,
  rootRoute,
  consoleRoutes,
  consoleSessionRoutes,
  healthRoutes,
  metricsRoute,
  openapiRoute,
  configSchemaRoute,
  docsRoutes,
]

export function addRoutes(
  app: App,
  service: ServiceDependencies & Pick<RouteDependencies, 'proxyIdentity' | 'issuer' | 'countCall'>,
): void {
  const closing = new AbortController()
  app.addHook('preClose', async () => closing.abort())
  const deps: RouteDependencies = {
    ...service,
    closing: closing.signal,
    idempotency: new Idempotency(service.store, service.clock),
    incoming: new Incoming(service.store, service.incomingMemory),
    reads: new HeavyReads(),
    downloads: new ProjectSlots('downloads', DOWNLOADS_MAX),
    streams: new ProjectSlots('streams', STREAMS_MAX),
  }
  const creation = new BatchCreation(deps)
  for (const add of ROUTES) add(app, deps, creation)
}
