// A URL whose path cannot be decoded has no endpoint. It is led to where its text would be found, so that the call
// goes the way of every other (its key is read, it is counted and recorded) before it is refused.

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
