// A plan says what a project has bought: how soon its batches may be due, and how long its files are kept.
import { durationMs } from './duration.ts'
import type { Quotas } from './quota.ts'

export interface CompletionWindow {
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
 * not offer (403), `nonsense` is none at all (400). `1440m` asks for the same window as `24h`.
 */
export function windowMs(plan: Plan, text: string): number | 'not_in_plan' | 'nonsense' {
  const ms = durationMs(text)
  if (ms === null || ms === 0) return 'nonsense'
  return plan.completion_windows.some((window) => window.ms === ms) ? ms : 'not_in_plan'
}
