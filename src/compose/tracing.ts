// Traces with OpenTelemetry's SDK, which exports spans by OTLP over HTTP. Its packages are optional
// dependencies, and loaded only where the environment asks for traces. Nothing is registered globally.
import type { Attributes, SpanContext } from '@opentelemetry/api'
import { Failure } from '../cli/terminal/failure.ts'
import type { TracingConfig } from '../config/config.ts'
import { sleep, systemClock } from '../domain/clock.ts'
import type { Log } from '../domain/log.ts'
import { parseTraceparent, type Span, type Tracing } from '../domain/tracing.ts'
import { version } from './version.ts'

interface OpenTracing extends Tracing {
  /** Exports the ended spans, for at most `CLOSE_MS_MAX`. */
  close(): Promise<void>
}

const CLOSE_MS_MAX = 3_000
/** The interval in ms between two warnings about a collector that is down. */
const WARN_EVERY_MS = 60_000
/** The longest attribute in characters: longer ones are a defect. */
const ATTRIBUTE_LENGTH_MAX = 256

const MISSING =
  'traces are asked for (OTEL_…), but the packages of OpenTelemetry are not installed: install offpeak with Node 22.15 or ' +
  'newer and without --omit=optional, or set OTEL_SDK_DISABLED=true'

/** Opens tracing; undefined where it is off. `role` becomes the resource attribute `offpeak.role`. */
export async function openTracing(
  config: TracingConfig | null,
  role: 'api' | 'worker',
  log: Log,
): Promise<OpenTracing | undefined> {
  if (config === null) return undefined
  const { api, sdk, resources, exporter } = await packages()
  warnOfExports(api, log)
  const root = new sdk.TraceIdRatioBasedSampler(config.ratio)
  const provider = new sdk.TracerProvider({
    sampler: config.parent_based ? new sdk.ParentBasedSampler({ root }) : root,
    spanLimits: { attributeValueLengthLimit: ATTRIBUTE_LENGTH_MAX },
    resource: resources
      .defaultResource()
      .merge(
        resources.resourceFromAttributes({
          'service.name': config.service_name,
          'service.version': version(),
          'offpeak.role': role,
          'process.pid': process.pid,
        }),
      )
      .merge(resources.detectResources({ detectors: [resources.envDetector] })),
    spanProcessors: [
      new sdk.BatchSpanProcessor({
        exporter: new exporter.OTLPTraceExporter(),
        scheduledDelayMillis: config.export.delay_ms,
        exportTimeoutMillis: config.export.timeout_ms,
        maxQueueSize: config.export.queue_max,
        maxExportBatchSize: config.export.batch_max,
      }),
    ],
  })
  const tracer = provider.getTracer('offpeak', version())
  const kinds = { server: api.SpanKind.SERVER, client: api.SpanKind.CLIENT, internal: api.SpanKind.INTERNAL }
  return {
    start({ name, kind, parent, at, attributes }) {
      const remote = parent === null ? null : remoteContext(parent)
      const context = remote ? api.trace.setSpanContext(api.ROOT_CONTEXT, remote) : api.ROOT_CONTEXT
      const options = { kind: kinds[kind], startTime: at, attributes: attributes as Attributes }
      const span = tracer.startSpan(name, options, context)
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
    async close() {
      const exported = new AbortController()
      const end = (): void => exported.abort()
      provider.shutdown().then(end, end)
      await sleep(systemClock, CLOSE_MS_MAX, exported.signal)
    },
  }
}

function remoteContext(traceparent: string): SpanContext | null {
  const [, traceId, spanId, flags] = parseTraceparent(traceparent)?.split('-') ?? []
  if (traceId === undefined || spanId === undefined) return null
  return { traceId, spanId, traceFlags: flags === '01' ? 1 : 0, isRemote: true }
}

async function packages() {
  try {
    const [api, sdk, resources, exporter] = await Promise.all([
      import('@opentelemetry/api'),
      import('@opentelemetry/sdk-trace'),
      import('@opentelemetry/resources'),
      import('@opentelemetry/exporter-trace-otlp-http'),
    ])
    return { api, sdk, resources, exporter }
  } catch (error) {
    const isMissing = error instanceof Error && 'code' in error && error.code === 'ERR_MODULE_NOT_FOUND'
    throw isMissing ? new Failure(MISSING) : error
  }
}

/** Logs failed exports, which the SDK reports to a logger of the whole process. */
function warnOfExports({ diag, DiagLogLevel }: typeof import('@opentelemetry/api'), log: Log): void {
  let warnedAt = Number.NEGATIVE_INFINITY
  const warn = (detail: string): void => {
    const now = systemClock.now()
    if (now - warnedAt < WARN_EVERY_MS) return
    warnedAt = now
    log.warn({ detail }, 'traces could not be exported')
  }
  const ignore = (): void => {}
  diag.setLogger(
    { error: warn, warn, info: ignore, debug: ignore, verbose: ignore },
    { logLevel: DiagLogLevel.WARN, suppressOverrideMessage: true },
  )
}
