// What may name a blob. Keys become file paths and bucket keys, so nothing that either reads in a special way
// may pass: no empty, "." or ".." segment, no other alphabet, nothing longer than a file name can be.

const KEY_LENGTH_MAX = 512
/** File systems allow 255 bytes a name. */
const SEGMENT_LENGTH_MAX = 255
const SEGMENT = /^[A-Za-z0-9._-]+$/
const PREFIX = /^[A-Za-z0-9._/-]*$/

/** Throws a RangeError when `key` is no key; keys are made by our own code, so a bad one is a mistake of ours. */
export function assertBlobKey(key: string): void {
  if (key.length > KEY_LENGTH_MAX) refuse(key, `it has more than ${KEY_LENGTH_MAX} characters`)
  for (const segment of key.split('/')) {
    if (!SEGMENT.test(segment)) refuse(key, 'segments are one or more of [A-Za-z0-9._-], joined by "/"')
    if (segment === '.' || segment === '..') refuse(key, `"${segment}" is no segment`)
    if (segment.length > SEGMENT_LENGTH_MAX)
      refuse(key, `a segment has more than ${SEGMENT_LENGTH_MAX} characters`)
  }
}

/** Throws a RangeError when no key could begin with `prefix`; the last segment may be incomplete. */
export function assertBlobPrefix(prefix: string): void {
  const whole = prefix.split('/').slice(0, -1)
  if (!PREFIX.test(prefix) || whole.some((segment) => ['', '.', '..'].includes(segment)))
    refuse(prefix, 'no key begins so')
}

function refuse(key: string, why: string): never {
  throw new RangeError(`${JSON.stringify(key.slice(0, KEY_LENGTH_MAX))} cannot name a blob: ${why}`)
}
