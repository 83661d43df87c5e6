// What no key can be judged by alone: values that have to fit each other.
import { durationText } from '../domain/duration.ts'
import type { Settings } from './settings.ts'
import { sizeText } from './size.ts'

/** One sentence for each pair of values that do not go together. */
export function crossCheck(settings: Settings): string[] {
  const problems: string[] = []
  const { worker, retry, retention, limits } = settings

  if (retry.backoff_min_ms > retry.backoff_max_ms) {
    problems.push(
      `retry.backoff_min: ${durationText(retry.backoff_min_ms)} is longer than retry.backoff_max, ${durationText(retry.backoff_max_ms)}`,
    )
  }
  // A lease is renewed by flushing; one that ends between two flushes would be lost by a healthy worker.
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
  for (const plan of settings.plans.values()) {
    if (plan.file_retention_ms > retention.audit_ms) {
      problems.push(
        `retention.audit: ${durationText(retention.audit_ms)} is shorter than plans.${plan.name}.file_retention, ${durationText(plan.file_retention_ms)}; audit records outlive the files`,
      )
    }
  }
  return problems
}
