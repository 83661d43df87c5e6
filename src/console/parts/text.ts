// Text that a model or a caller wrote. It is text whatever it holds, and characters that would change how the text
// around them looks are shown instead of obeyed.
import { type ComponentChildren, h, type View } from '../h.ts'

/** Control characters but tab and line end; formatting characters but soft hyphens and joiners. */
const HIDDEN = /(?![\t\n])\p{Cc}|(?![\u00ad\u200c\u200d])\p{Cf}/gu

export function visibleText(text: string): ComponentChildren[] {
  const parts: ComponentChildren[] = []
  let from = 0
  for (const { 0: character, index } of text.matchAll(HIDDEN)) {
    if (character === '\r' && text[index + 1] === '\n') continue
    const code = (character.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, '0')
    parts.push(text.slice(from, index), h('span', { class: 'hidden-character', title: `U+${code}` }, code))
    from = index + character.length
  }
  parts.push(text.slice(from))
  return parts
}

export function Prose({ text }: { text: string }): View {
  return h('div', { class: 'prose', dir: 'auto' }, visibleText(text))
}

export function CodeBlock({ text, label }: { text: string; label: string }): View {
  return h(
    'pre',
    { class: 'code-block wrap', tabIndex: 0, role: 'region', 'aria-label': label },
    visibleText(text),
  )
}
