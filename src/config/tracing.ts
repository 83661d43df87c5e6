// Decides by the standard variables of OpenTelemetry whether there are traces, and which. The exporter reads its own
// variables (addresses, headers, certificates).
import { present } from './sources.ts'

export interface TracingConfig {
  /** Whether a span follows the decision for its parent. */
  parent_based: boolean
  /** Of traces that begin here, in [0, 1]; of lines in sampled chunks as well. */
  ratio: number
  service_name: string
  /** Of the queue of ended spans. */
  export: { delay_ms: number; timeout_ms: number; queue_max: number; batch_max: number }
}

const SAMPLERS: Readonly<Record<string, number | null>> = { always_on: 1, always_off: 0, traceidratio: null }
const DEFAULT_SAMPLER = 'parentbased_always_on'

/** Null where traces are off, which is the default. Adds what is wrong to `problems`. */
export function tracingFromEnv(env: NodeJS.ProcessEnv, problems: string[]): TracingConfig | null {
  const read = (name: string): string | undefined => present(env[name])
  const exporter = read('OTEL_TRACES_EXPORTER')?.toLowerCase()
  const endpoint = read('OTEL_EXPORTER_OTLP_TRACES_ENDPOINT') ?? read('OTEL_EXPORTER_OTLP_ENDPOINT')
  if (read('OTEL_SDK_DISABLED')?.toLowerCase() === 'true' || exporter === 'none') return null
  if (exporter === undefined && endpoint === undefined) return null
  if (exporter !== undefined && exporter !== 'otlp')
    problems.push(`OTEL_TRACES_EXPORTER: ${JSON.stringify(exporter)} is not supported; use otlp, or none`)
  if (endpoint !== undefined && !/^https?:\/\//.test(endpoint))
    problems.push('OTEL_EXPORTER_OTLP_ENDPOINT: not an http:// or https:// URL')
  const protocol = read('OTEL_EXPORTER_OTLP_TRACES_PROTOCOL') ?? read('OTEL_EXPORTER_OTLP_PROTOCOL')
  if (protocol === 'grpc')
    problems.push(
      'OTEL_EXPORTER_OTLP_PROTOCOL: grpc is not supported; use http/json and the port for HTTP (4318)',
    )
  const count = (name: string, fallback: number): number => {
    const text = read(name)
    const value = Number(text ?? fallback)
    if (Number.isInteger(value) && value > 0) return value
    problems.push(`${name}: must be a positive integer, not ${JSON.stringify(text)}`)
    return fallback
  }
  const queue_max = count('OTEL_BSP_MAX_QUEUE_SIZE', 2048)
  return {
    ...sampler(read('OTEL_TRACES_SAMPLER') ?? DEFAULT_SAMPLER, read('OTEL_TRACES_SAMPLER_ARG'), problems),
    service_name: read('OTEL_SERVICE_NAME') ?? 'offpeak',
    export: {
      delay_ms: count('OTEL_BSP_SCHEDULE_DELAY', 5_000),
      timeout_ms: count('OTEL_BSP_EXPORT_TIMEOUT', 30_000),
      queue_max,
      batch_max: Math.min(queue_max, count('OTEL_BSP_MAX_EXPORT_BATCH_SIZE', 512)),
    },
  }
}

function sampler(
  name: string,
  argument: string | undefined,
  problems: string[],
): Pick<TracingConfig, 'parent_based' | 'ratio'> {
  const parent_based = name.startsWith('parentbased_')
  const root = SAMPLERS[name.replace(/^parentbased_/, '')]
  if (root === undefined) {
    const known = Object.keys(SAMPLERS).flatMap((one) => [one, `parentbased_${one}`])
    problems.push(
      `OTEL_TRACES_SAMPLER: ${JSON.stringify(name)} is not supported; use one of ${known.join(', ')}`,
    )
    return { parent_based, ratio: 0 }
  }
  if (root !== null) return { parent_based, ratio: root }
  const ratio = Number(argument ?? 1)
  if (!(ratio >= 0 && ratio <= 1))
    problems.push(`OTEL_TRACES_SAMPLER_ARG: must be a number from 0 to 1, not ${JSON.stringify(argument)}`)
  return { parent_based, ratio }
}
