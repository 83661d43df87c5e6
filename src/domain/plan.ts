// A plan sets the completion windows, the file retention and the quotas of the projects that have it.
import { durationMs } from './days.ts'
import type { Quotas } from './quota.ts'

interface CompletionWindow {
  /** As configured, and as a batch shows it: `24h`. */
  text: string
  ms: number
}

export interface Plan {
  name: string
  /** At least one, in the order configured. */
  completion_windows: readonly CompletionWindow[]
  file_retention_ms: number
  quotas: Quotas
}

/**
 * The length of the completion window that a request asks for. `not_in_plan` is a window that this plan does
 * not offer (403), `invalid` is not a duration (400). `1440m` is the same window as `24h`.
 */
export function windowMs(plan: Plan, text: string): number | 'not_in_plan' | 'invalid' {
  const ms = durationMs(text)
  if (ms === null || ms === 0) return 'invalid'
  return plan.completion_windows.some((window) => window.ms === ms) ? ms : 'not_in_plan'
}
