// The keys of a server that answers other requests than lines, and lets those go first.
import { fraction, integer, orWord, text } from './scalars.ts'
import { byDefault, optional, section } from './shape.ts'

const METRICS = 'the address of its metrics such as http://10.0.0.5:8000/metrics, auto, or off'

export const LIVE = section({
  metrics: byDefault(
    'auto',
    orWord(text(/^https?:\/\/[^\s@]+$/, METRICS), { auto: 'auto', off: 'off' } as const, METRICS),
  ),
  waiting_max: byDefault(0, integer(0)),
  cache_max: byDefault(0.85, fraction),
  priority: optional(integer(-(2 ** 31), 2 ** 31 - 1)),
})

/** Where a server shows its metrics: beside `/v1`, unless the configuration says otherwise; null: nowhere. */
export function metricsUrl(metrics: string, base_url: string): string | null {
  if (metrics === 'off') return null
  if (metrics !== 'auto') return metrics
  const url = new URL(base_url)
  url.pathname = `${url.pathname.replace(/\/+$/, '').replace(/\/v1$/, '')}/metrics`
  url.search = ''
  return url.href
}
