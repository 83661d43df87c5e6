// The Range header (RFC 9110 §14): one range of bytes. Several ranges and other units are ignored, as the RFC
// allows; the whole content is then sent.
import type { ByteRange } from '../../../blobs/blobs.ts'

export function parseRange(header: string | undefined, bytes: number): ByteRange | 'unsatisfiable' | null {
  const [, first = '', last = ''] = /^bytes=(\d*)-(\d*)$/.exec(header?.replaceAll(' ', '') ?? '') ?? []
  if (first === '' && last === '') return null
  if (first === '') {
    const suffix = Math.min(Number(last), bytes)
    return suffix === 0 ? 'unsatisfiable' : { start: bytes - suffix, end: bytes }
  }
  const start = Number(first)
  const end = last === '' ? bytes : Math.min(Number(last) + 1, bytes)
  if (last !== '' && Number(last) < start) return null
  return start >= bytes ? 'unsatisfiable' : { start, end }
}
