// Renders Markdown as elements, never as HTML: text of a model can load or run nothing. It is loaded with the first line.
import { marked, type Token, type Tokens } from 'marked'
import type { ComponentChildren, VNode } from 'preact'
import { CodeBlock } from './text.tsx'

/** The longest text in characters that is parsed: a longer one could block the page for seconds. */
const CHARACTERS_MAX = 20_000
/** The deepest nesting of Markdown elements that is rendered. */
const DEPTH_MAX = 40

/** Renders Markdown; a text that is too long, or nested too deeply, is shown unchanged. */
export function Markdown({ text, label }: { text: string; label: string }): VNode {
  const shown = text.length > CHARACTERS_MAX ? null : rendered(text, label)
  return (
    <div class={shown === null ? 'prose' : 'markdown'} dir="auto">
      {shown ?? text}
    </div>
  )
}

function rendered(text: string, label: string): ComponentChildren[] | null {
  try {
    const tokens = marked.lexer(text)
    return depthOf(tokens) > DEPTH_MAX ? null : elements(tokens, label)
  } catch {
    return null
  }
}

function depthOf(tokens: readonly Token[]): number {
  const within = tokens.map((token): number => {
    if (token.type === 'list') return depthOf((token as Tokens.List).items)
    return 'tokens' in token && token.tokens ? depthOf(token.tokens) : 0
  })
  return 1 + within.reduce((most, depth) => Math.max(most, depth), 0)
}

function elements(tokens: readonly Token[] | undefined, label: string): ComponentChildren[] {
  return (tokens ?? []).map((token) => elementOf(token, label))
}

function elementOf(token: Token, label: string): ComponentChildren {
  const inner = (): ComponentChildren[] => elements('tokens' in token ? token.tokens : undefined, label)
  switch (token.type) {
    case 'space':
      return null
    case 'code':
      return <CodeBlock text={token.text} label={token.lang || label} />
    // A heading would mix with those of the page.
    case 'heading':
      return <p class="markdown-heading">{inner()}</p>
    case 'blockquote':
    case 'strong':
    case 'em':
    case 'del':
      return <token.type>{inner()}</token.type>
    case 'paragraph':
      return <p>{inner()}</p>
    case 'hr':
      return <hr />
    case 'list':
      return listOf(token as Tokens.List, label)
    case 'table':
      return tableOf(token as Tokens.Table, label)
    case 'br':
      return <br />
    case 'codespan':
      return <code class="code">{token.text}</code>
    // The address of a link is shown, since its text may differ.
    case 'link':
      return token.text === token.href
        ? token.href
        : [...inner(), ' ', <code class="code">{token.href}</code>]
    case 'text':
      return 'tokens' in token && token.tokens ? inner() : unescaped(token.text)
    default:
      return token.type === 'escape' ? token.text : token.raw
  }
}

function listOf({ ordered, start, items }: Tokens.List, label: string): VNode {
  const rows = items.map(({ task, checked, tokens }) => (
    <li>
      {task ? (checked ? '☑ ' : '☐ ') : null}
      {elements(tokens, label)}
    </li>
  ))
  return ordered ? <ol start={start === '' ? 1 : start}>{rows}</ol> : <ul>{rows}</ul>
}

function tableOf({ header, rows }: Tokens.Table, label: string): VNode {
  return (
    <table>
      <thead>
        <tr>
          {header.map(({ tokens }) => (
            <th>{elements(tokens, label)}</th>
          ))}
        </tr>
      </thead>
      <tbody>
        {rows.map((cells) => (
          <tr>
            {cells.map(({ tokens }) => (
              <td>{elements(tokens, label)}</td>
            ))}
          </tr>
        ))}
      </tbody>
    </table>
  )
}

const ENTITIES: Readonly<Record<string, string>> = {
  '&amp;': '&',
  '&lt;': '<',
  '&gt;': '>',
  '&quot;': '"',
  '&#39;': "'",
}

function unescaped(text: string): string {
  return text.replaceAll(/&(?:amp|lt|gt|quot|#39);/g, (entity) => ENTITIES[entity] ?? entity)
}
