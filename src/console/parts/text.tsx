// Text that a model or a caller wrote. It is text whatever it holds, and characters that would change how the text
// around them looks are shown instead of obeyed.
import type { ComponentChildren, VNode } from 'preact'

/** Control characters but tab and line end; formatting characters but soft hyphens and joiners. */
const HIDDEN = /(?![\t\n])\p{Cc}|(?![\u00ad\u200c\u200d])\p{Cf}/gu

export function visibleText(text: string): ComponentChildren[] {
  const parts: ComponentChildren[] = []
  let from = 0
  for (const { 0: character, index } of text.matchAll(HIDDEN)) {
    if (character === '\r' && text[index + 1] === '\n') continue
    const code = (character.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, '0')
    parts.push(
      text.slice(from, index),
      <span class="hidden-character" title={`U+${code}`}>
        {code}
      </span>,
    )
    from = index + character.length
  }
  parts.push(text.slice(from))
  return parts
}

export function Prose({ text }: { text: string }): VNode {
  return (
    <div class="prose" dir="auto">
      {visibleText(text)}
    </div>
  )
}

export function CodeBlock({ text, label }: { text: string; label: string }): VNode {
  return (
    <pre class="code-block wrap" tabIndex={0} role="region" aria-label={label}>
      {visibleText(text)}
    </pre>
  )
}
