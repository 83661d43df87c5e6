// Traces and audit logs with OpenTelemetry's SDK, which exports them by OTLP over HTTP. Its packages are optional
// dependencies, and loaded only where the environment asks for them. Nothing is registered globally.
import type { Attributes, Context, SpanContext } from '@opentelemetry/api'
import { Failure } from '../cli/terminal/failure.ts'
import type { Config, OtlpConfig, TracingConfig } from '../config/config.ts'
import type { AuditLog } from '../domain/audit-log.ts'
import { sleep, systemClock } from '../domain/clock.ts'
import type { Log } from '../domain/log.ts'
import { parseTraceparent, type Span, type Tracing } from '../domain/tracing.ts'
import { version } from './version.ts'

interface Telemetry {
  tracing: Tracing | undefined
  auditLog: AuditLog | undefined
  /** Exports the ended spans and logs, for at most `CLOSE_MS_MAX`. */
  close(): Promise<void>
}

type Role = 'api' | 'worker'

const CLOSE_MS_MAX = 3_000
/** The interval in ms between two warnings about a collector that is down. */
const WARN_EVERY_MS = 60_000
/** The longest attribute in characters: longer ones are cut. */
const ATTRIBUTE_LENGTH_MAX = 256

const MISSING =
  'traces or logs are asked for (OTEL_…), but the packages of OpenTelemetry are not installed: install offpeak with Node 22.15 or ' +
  'newer and without --omit=optional, or set OTEL_SDK_DISABLED=true'

/** Opens traces and audit logs, each where it is on. `role` becomes the resource attribute `offpeak.role`. */
export async function openTelemetry(
  { tracing, audit_log }: Pick<Config, 'tracing' | 'audit_log'>,
  role: Role,
  log: Log,
): Promise<Telemetry> {
  const traces = tracing && (await openTracing(tracing, role, log))
  const logs = audit_log && (await openAuditLog(audit_log, role, log))
  return {
    tracing: traces?.port,
    auditLog: logs?.port,
    async close() {
      const exported = new AbortController()
      const end = (): void => exported.abort()
      Promise.allSettled([traces?.provider.shutdown(), logs?.provider.shutdown()]).then(end, end)
      if (traces || logs) await sleep(systemClock, CLOSE_MS_MAX, exported.signal)
    },
  }
}

async function openTracing(config: TracingConfig, role: Role, log: Log) {
  const { api, resources, sdk, exporter } = await load(log, async () => ({
    sdk: await import('@opentelemetry/sdk-trace'),
    exporter: await import('@opentelemetry/exporter-trace-otlp-http'),
  }))
  const root = new sdk.TraceIdRatioBasedSampler(config.ratio)
  const provider = new sdk.TracerProvider({
    sampler: config.parent_based ? new sdk.ParentBasedSampler({ root }) : root,
    spanLimits: { attributeValueLengthLimit: ATTRIBUTE_LENGTH_MAX },
    resource: resourceOf(resources, config, role),
    spanProcessors: [
      new sdk.BatchSpanProcessor({ exporter: new exporter.OTLPTraceExporter(), ...queueOf(config) }),
    ],
  })
  const tracer = provider.getTracer('offpeak', version())
  const kinds = { server: api.SpanKind.SERVER, client: api.SpanKind.CLIENT, internal: api.SpanKind.INTERNAL }
  const port: Tracing = {
    start({ name, kind, parent, at, attributes }) {
      const options = { kind: kinds[kind], startTime: at, attributes: attributes as Attributes }
      const span = tracer.startSpan(name, options, contextOf(api, parent))
      const { traceId, spanId, traceFlags } = span.spanContext()
      return {
        traceparent: `00-${traceId}-${spanId}-${(traceFlags & 1) === 1 ? '01' : '00'}`,
        isRecording: span.isRecording(),
        set: (more) => void span.setAttributes(more as Attributes),
        end(endedAt, error) {
          if (error !== undefined) span.setAttribute('error.type', error).setStatus({ code: 2 })
          span.end(endedAt)
        },
      } satisfies Span
    },
    samplesLine: () => config.ratio > Math.random(),
  }
  return { port, provider }
}

async function openAuditLog(config: OtlpConfig, role: Role, log: Log) {
  const { api, resources, sdk, exporter } = await load(log, async () => ({
    sdk: await import('@opentelemetry/sdk-logs'),
    exporter: await import('@opentelemetry/exporter-logs-otlp-http'),
  }))
  const sent = new exporter.OTLPLogExporter()
  let waiting = 0
  let dropped = 0
  const warn = rarely(() => {
    log.warn({ dropped }, 'calls and lines were not logged: the collector is too slow, or down')
    dropped = 0
  })
  const queue = queueOf(config)
  const provider = new sdk.LoggerProvider({
    logRecordLimits: { attributeValueLengthLimit: ATTRIBUTE_LENGTH_MAX },
    resource: resourceOf(resources, config, role),
    processors: [
      new sdk.BatchLogRecordProcessor({
        exporter: {
          export(records, done) {
            waiting -= records.length
            sent.export(records, done)
          },
          forceFlush: () => sent.forceFlush(),
          shutdown: () => sent.shutdown(),
        },
        ...queue,
      }),
    ],
  })
  const logger = provider.getLogger('offpeak', version())
  const { INFO, WARN } = api.SeverityNumber
  const port: AuditLog = ({ event, at, isFailed, traceparent, attributes }) => {
    // The processor drops what its queue has no room for, and tells nobody.
    if (waiting >= queue.maxQueueSize) {
      dropped++
      return warn()
    }
    waiting++
    logger.emit({
      eventName: event,
      timestamp: at,
      severityNumber: isFailed ? WARN : INFO,
      severityText: isFailed ? 'WARN' : 'INFO',
      attributes: Object.fromEntries(
        Object.entries(attributes).filter(([, value]) => value !== null),
      ) as Attributes,
      context: contextOf(api, traceparent),
    })
  }
  return { port, provider }
}

type Api = typeof import('@opentelemetry/api')

function queueOf({ export: { delay_ms, timeout_ms, queue_max, batch_max } }: OtlpConfig) {
  return {
    scheduledDelayMillis: delay_ms,
    exportTimeoutMillis: timeout_ms,
    maxQueueSize: queue_max,
    maxExportBatchSize: batch_max,
  }
}

function resourceOf(
  resources: typeof import('@opentelemetry/resources'),
  { service_name }: OtlpConfig,
  role: Role,
) {
  return resources
    .defaultResource()
    .merge(
      resources.resourceFromAttributes({
        'service.name': service_name,
        'service.version': version(),
        'offpeak.role': role,
        'process.pid': process.pid,
      }),
    )
    .merge(resources.detectResources({ detectors: [resources.envDetector] }))
}

function contextOf(api: Api, traceparent: string | null): Context {
  const remote = traceparent === null ? null : remoteContext(traceparent)
  return remote ? api.trace.setSpanContext(api.ROOT_CONTEXT, remote) : api.ROOT_CONTEXT
}

function remoteContext(traceparent: string): SpanContext | null {
  const [, traceId, spanId, flags] = parseTraceparent(traceparent)?.split('-') ?? []
  if (traceId === undefined || spanId === undefined) return null
  return { traceId, spanId, traceFlags: flags === '01' ? 1 : 0, isRemote: true }
}

/** Loads what traces and logs share, and `own`. Throws a Failure where the packages are not installed. */
async function load<T>(log: Log, own: () => Promise<T>) {
  try {
    const api = await import('@opentelemetry/api')
    const packages = { api, resources: await import('@opentelemetry/resources'), ...(await own()) }
    warnOfExports(api, log)
    return packages
  } catch (error) {
    const isMissing = error instanceof Error && 'code' in error && error.code === 'ERR_MODULE_NOT_FOUND'
    throw isMissing ? new Failure(MISSING) : error
  }
}

/** Logs failed exports, which the SDK reports to a logger of the whole process. */
function warnOfExports({ diag, DiagLogLevel }: Api, log: Log): void {
  const warn = rarely((detail: string) => log.warn({ detail }, 'traces or logs could not be exported'))
  const ignore = (): void => {}
  diag.setLogger(
    { error: warn, warn, info: ignore, debug: ignore, verbose: ignore },
    { logLevel: DiagLogLevel.WARN, suppressOverrideMessage: true },
  )
}

function rarely<Args extends unknown[]>(act: (...args: Args) => void): (...args: Args) => void {
  let actedAt = Number.NEGATIVE_INFINITY
  return (...args) => {
    const now = systemClock.now()
    if (now - actedAt < WARN_EVERY_MS) return
    actedAt = now
    act(...args)
  }
}
