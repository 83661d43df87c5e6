// How many calls there are, how they end and how long they take, by endpoint.
import { Histogram, type Registry } from 'prom-client'

const BUCKETS_S = [0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60]

export type ObserveCall = (call: {
  method: string
  route: string
  status: number
  duration_ms: number
}) => void

export function httpMetrics(registry: Registry): ObserveCall {
  const durations = new Histogram({
    name: 'offpeak_http_request_duration_seconds',
    help: 'How long HTTP calls took, from their headers to the end of their answer.',
    labelNames: ['method', 'route', 'status'],
    buckets: BUCKETS_S,
    registers: [registry],
  })
  return ({ method, route, status, duration_ms }) =>
    durations.observe({ method, route, status }, duration_ms / 1000)
}
