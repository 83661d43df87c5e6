// The URL of a server's metrics: beside `/v1`, unless the configuration names another; null: none.
export function metricsUrl(metrics: string, base_url: string): string | null {
  if (metrics === 'off') return null
  if (metrics !== 'auto') return metrics
  const url = new URL(base_url)
  url.pathname = `${url.pathname.replace(/\/+$/, '').replace(/\/v1$/, '')}/metrics`
  url.search = ''
  return url.href
}
