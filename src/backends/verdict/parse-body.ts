// JSON that is not worth what parsing it would take: a body of brackets alone takes fifty times its size in memory,
// and a second for every few megabytes.

const BYTES_MAX = 4 * 1024 * 1024
/** Far more than a request may nest, which a server may quote. */
const DEPTH_MAX = 1000

const QUOTE = 0x22
const BACKSLASH = 0x5c

/** What `body` holds; undefined where that is no JSON, or where it is too large or nested too deep to be parsed. */
export function parseBody(body: Buffer): unknown {
  if (body.length > BYTES_MAX || nestsTooDeep(body)) return undefined
  try {
    return JSON.parse(body.toString())
  } catch {
    return undefined
  }
}

function nestsTooDeep(body: Buffer): boolean {
  let depth = 0
  let inText = false
  for (let i = 0; i < body.length; i++) {
    const c = body[i]!
    if (inText) {
      if (c === BACKSLASH) i++
      else if (c === QUOTE) inText = false
    } else if (c === QUOTE) inText = true
    // Brackets and braces differ in this bit alone.
    else if ((c | 0x20) === 0x7b && ++depth > DEPTH_MAX) return true
    else if ((c | 0x20) === 0x7d) depth--
  }
  return false
}
