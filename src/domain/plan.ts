// A plan sets the completion windows, the retention of content and the quotas of its projects.
import { durationMs } from './days.ts'
import { ApiError } from './errors.ts'
import type { Retention } from './retention.ts'
import { counted } from './text.ts'

export interface CompletionWindow {
  /** The window as configured and as a batch shows it: `24h`. */
  text: string
  ms: number
}

export interface Plan {
  name: string
  /** The completion windows, at least one, in configured order. */
  completion_windows: readonly CompletionWindow[]
  file_retention_ms: number
  /** The retention of content that is deleted early; null: content is kept for `file_retention_ms`. */
  retention: Retention | null
  /** The price of a line as a share of that of a live call; null: not known. */
  live_price_share: number | null
  quotas: Quotas
}

/**
 * The completion window that a request asks for. `not_in_plan`: this plan does not offer it (403), `invalid`: it is not
 * a duration (400). `1440m` is the same window as `24h`.
 */
export function windowOf(plan: Plan, text: string): CompletionWindow | 'not_in_plan' | 'invalid' {
  const ms = durationMs(text)
  if (ms === null || ms === 0) return 'invalid'
  return plan.completion_windows.find((window) => window.ms === ms) ?? 'not_in_plan'
}

// Quotas limit the resources that a project may use at once, apart from its spend. Each plan sets them; a call that
// would exceed a quota changes nothing.

/** The quotas in the order in which they are shown. */
export const QUOTA_NAMES = [
  'stored_bytes',
  'open_batches',
  'queued_lines',
  'queued_tokens',
  'limits',
  'webhooks',
  'entities_per_batch',
  'uploads',
  'downloads',
  'streams',
  'keys',
] as const
export type QuotaName = (typeof QUOTA_NAMES)[number]

/** The limit of each quota; null: unlimited. */
export type Quotas = Readonly<Record<QuotaName, number | null>>

export const QUOTAS_DEFAULT: Quotas = {
  stored_bytes: 2 ** 40,
  open_batches: 1000,
  queued_lines: 100_000_000,
  queued_tokens: null,
  limits: 10_000,
  webhooks: 20,
  // The transaction that creates a batch writes a row for each entity.
  entities_per_batch: 5000,
  uploads: 16,
  downloads: 64,
  streams: 100,
  keys: 100,
}

/** Quotas of running calls, which each API process counts by itself. */
const OF_CALLS: readonly QuotaName[] = ['uploads', 'downloads', 'streams']

/** The resource that each quota counts, what stands after its number and noun, and how to reduce its use. */
const TEXTS: Record<QuotaName, { one: string; many?: string; where?: string; advice: string }> = {
  stored_bytes: {
    one: 'byte',
    where: ' in files, results included',
    advice: 'Delete files that are no longer needed.',
  },
  open_batches: {
    one: 'unfinished batch',
    many: 'unfinished batches',
    advice: 'Wait until some have ended, or cancel some.',
  },
  queued_lines: {
    one: 'unfinished line',
    where: ' in batches',
    advice: 'Wait until more lines have finished, or cancel a batch.',
  },
  queued_tokens: {
    one: 'token',
    where: ' of unfinished lines of one model',
    advice: 'Wait until more of its lines have ended, or cancel a batch.',
  },
  limits: {
    one: 'limit',
    advice:
      'Delete limits that are no longer needed; a limit with the scope `entity_type` covers many entities.',
  },
  webhooks: { one: 'webhook', advice: 'Delete a webhook first.' },
  entities_per_batch: {
    one: 'different entity',
    many: 'different entities',
    where: ' in one batch',
    advice: 'Split the file by entity.',
  },
  uploads: { one: 'concurrent upload', advice: 'Wait until one of them has ended, then try again.' },
  downloads: { one: 'concurrent download', advice: 'Wait until one of them has ended, then try again.' },
  streams: { one: 'concurrent stream', where: ' of live updates', advice: 'End one of them first.' },
  keys: { one: 'API key', advice: 'Revoke keys that are no longer needed.' },
}

const SPLIT =
  'Split it into smaller calls, or ask the operator of the service to raise the quota of the plan.'

/** The error of a quota. `used`: the project's use; `more`: the addition; `model`: for a quota of each model. */
export function quotaExceeded(
  name: QuotaName,
  limit: number,
  used: number,
  more: number,
  model?: string,
): ApiError {
  const { one, many, where = '', advice } = TEXTS[name]
  const of = model === undefined ? '' : ` of ${model}`
  // A call that alone exceeds the limit can never succeed.
  const neverFits = more > limit
  const use =
    name === 'entities_per_batch'
      ? `this batch has ${more}`
      : neverFits
        ? `this call alone would add ${more}${of}`
        : `it has ${used}${of}, and this call would add ${more}`
  const state = neverFits ? 'is too small for this call' : 'is used up'
  const next = neverFits && name !== 'entities_per_batch' ? SPLIT : advice
  const message = `The quota \`${name}\` ${state}: a project on this plan may have ${counted(limit, one, many)}${where}; ${use}. ${next}`
  const details = neverFits ? { quota: name, never_fits: true as const } : { quota: name }
  return new ApiError('quota_exceeded', message, details, OF_CALLS.includes(name) ? 1 : undefined)
}
