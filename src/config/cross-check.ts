// Checks that concern more than one section: values that must be consistent with each other.
import { durationText } from '../domain/duration.ts'
import type { Config } from './config.ts'
import { sizeText } from './size.ts'

/** One sentence for each pair of values that contradict each other. */
export function crossCheck(config: Config): string[] {
  const problems: string[] = []
  const { worker, retry, retention, limits } = config

  if (retry.backoff_min_ms > retry.backoff_max_ms) {
    problems.push(
      `retry.backoff_min: ${durationText(retry.backoff_min_ms)} is longer than retry.backoff_max, ${durationText(retry.backoff_max_ms)}`,
    )
  }
  // A worker that flushes on time must not lose its leases to one late heartbeat.
  if (worker.lease_ms < 2 * worker.flush_interval_ms) {
    problems.push(
      `worker.lease: ${durationText(worker.lease_ms)} is less than twice worker.flush_interval, ${durationText(worker.flush_interval_ms)}`,
    )
  }
  if (limits.line_bytes_max > limits.file_bytes_max) {
    problems.push(
      `limits.line_bytes_max: ${sizeText(limits.line_bytes_max)} is more than limits.file_bytes_max, ${sizeText(limits.file_bytes_max)}`,
    )
  }
  for (const plan of config.plans.values()) {
    if (plan.file_retention_ms > retention.audit_ms) {
      problems.push(
        `retention.audit: ${durationText(retention.audit_ms)} is shorter than plans.${plan.name}.file_retention, ${durationText(plan.file_retention_ms)}; audit records outlive the files`,
      )
    }
  }
  const hasEngine = config.models.some(({ upstreams }) =>
    upstreams.some((one) => one.type === 'openai' && one.engine !== null),
  )
  if (hasEngine && typeof worker.processes === 'number' && worker.processes > 1)
    problems.push(
      `worker.processes: ${worker.processes} processes would start every engine as many times; leave it out, or set 1`,
    )
  return problems
}
