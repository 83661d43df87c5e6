// The filename of an upload is shown to users and sent in headers, so folders, line breaks, control characters and
// bidirectional controls are removed.

const LENGTH_MAX = 255
/** C0 and C1 controls, line and paragraph separators, and bidirectional controls. */
const UNSEEN = /[\p{Cc}\p{Zl}\p{Zp}\u200e\u200f\u202a-\u202e\u2066-\u2069]/gu

export function safeFilename(given: string | undefined): string {
  const name = (given ?? '').toWellFormed().split(/[/\\]/).at(-1) ?? ''
  const clean = [...name.replace(UNSEEN, '').trim()].slice(0, LENGTH_MAX).join('')
  return clean === '' || clean === '.' || clean === '..' ? 'upload.jsonl' : clean
}
