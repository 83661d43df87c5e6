// A URL whose path cannot be decoded is routed with its percent signs escaped, so that the call is authenticated,
// counted and recorded like every other before it is rejected.

export function hasBrokenEncoding(url: string): boolean {
  const path = url.split('?', 1)[0] ?? ''
  if (!path.includes('%')) return false
  try {
    decodeURIComponent(path)
    return false
  } catch {
    return true
  }
}

/** A URL that the router can read: the same one, unless it is broken. */
export function routableUrl(url: string): string {
  return hasBrokenEncoding(url) ? url.replaceAll('%', '%25') : url
}
