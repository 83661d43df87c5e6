// The text of an error page, found in one pass: the page is a stranger's, and a pattern that goes back over it
// takes minutes for what one made to last.

/** What stands between these is not text. */
const UNSEEN = ['style', 'script']

/** `page` without tags and comments, a blank in place of each. A `<` that begins no tag is text. */
export function withoutTags(page: string): string {
  // Of ASCII alone: other letters may change their length.
  const lower = page.replace(/[A-Z]+/g, (letters) => letters.toLowerCase())
  let text = ''
  let at = 0
  for (;;) {
    const open = page.indexOf('<', at)
    if (open === -1) return text + page.slice(at)
    const end = endOfTag(lower, open)
    text += end === open + 1 ? page.slice(at, end) : `${page.slice(at, open)} `
    at = end
  }
}

/** The index behind what begins at `open`, which is the next one for a `<` that begins no tag. */
function endOfTag(page: string, open: number): number {
  if (page.startsWith('<!--', open)) return behind(page, '-->', open + 4)
  if (!/[a-z/!?]/.test(page[open + 1] ?? '')) return open + 1
  const unseen = UNSEEN.find((name) => page.startsWith(name, open + 1))
  if (unseen === undefined) return behind(page, '>', open)
  const close = page.indexOf(`</${unseen}`, open)
  return close === -1 ? page.length : behind(page, '>', close)
}

/** The end of the page where `mark` is missing: it was cut there. */
function behind(page: string, mark: string, from: number): number {
  const at = page.indexOf(mark, from)
  return at === -1 ? page.length : at + mark.length
}
