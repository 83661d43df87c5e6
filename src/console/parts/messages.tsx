// Shows the messages of a chat: texts, pictures, tool calls and reasoning. Messages of another shape are shown as JSON.
import { type ComponentChildren, createContext, type VNode } from 'preact'
import { useContext, useEffect, useState } from 'preact/hooks'
import { isRecord } from '../../domain/json-record.ts'
import { choicesOf, schemaOf, textOfContent } from '../answer-columns.ts'
import { t } from '../i18n.ts'
import { parseExact, print, schemaProblems } from '../json.ts'
import { Notice } from './notice.tsx'
import { CodeBlock, Prose } from './text.tsx'

type Json = Record<string, unknown>

/** The finish reasons of OpenAI's and Anthropic's APIs for an answer that was cut off. */
const CUT_OFF = ['length', 'max_tokens']

/** Whether texts are shown literally, not as Markdown. */
export const AsWritten = createContext(false)

let Markdown: ((props: { text: string; label: string }) => VNode) | null = null

function Said({ text }: { text: string }): VNode {
  const [, redraw] = useState({})
  const asWritten = useContext(AsWritten)
  useEffect(() => {
    if (Markdown || asWritten) return
    // Until the module is loaded, or where it cannot be, the text is shown unchanged.
    const loaded = import('./markdown.tsx').then((module) => {
      Markdown = module.Markdown
      redraw({})
    })
    loaded.catch(() => {})
  }, [asWritten])
  return Markdown && !asWritten ? <Markdown text={text} label={t('line.answer')} /> : <Prose text={text} />
}

/** Shows a request. `body`: the request body. */
export function Messages({ body }: { body: Json }): VNode {
  const { messages, system, ...rest } = body
  if (!Array.isArray(messages)) return <CodeBlock text={print(body)} label={t('line.prompt')} />
  return (
    <div class="chat">
      {system === undefined ? null : <Message message={{ role: 'system', content: system }} />}
      {messages.filter(isRecord).map((message) => (
        <Message message={message} />
      ))}
      <details class="raw">
        <summary>{t('line.parameters')}</summary>
        <CodeBlock text={print(rest)} label={t('line.parameters')} />
      </details>
    </div>
  )
}

/** Shows an answer. `asked`: its request, whose schema the answer is checked against. */
export function Answer({ body, asked }: { body: unknown; asked: Json | null }): VNode {
  const chats = choicesOf(body).filter(({ message }) => isRecord(message))
  if (chats.length === 0) return <CodeBlock text={print(body)} label={t('line.answer')} />
  return (
    <div class="chat">
      {chats.map(({ message, finish_reason }) => (
        <div class="stack tight">
          <Message
            message={isRecord(message) ? message : {}}
            reason={typeof finish_reason === 'string' ? finish_reason : ''}
          />
          <SchemaVerdict asked={asked} message={isRecord(message) ? message : {}} />
        </div>
      ))}
    </div>
  )
}

function Message({ message, reason = '' }: { message: Json; reason?: string }): VNode {
  const { role, content, reasoning_content, reasoning, refusal, tool_calls, tool_call_id } = message
  const thought = [reasoning_content, reasoning].find((text) => typeof text === 'string' && text !== '')
  return (
    <article class={`message ${role === 'assistant' ? 'assistant' : ''}`}>
      <header class="message-role">
        {String(role ?? '')}
        {typeof tool_call_id === 'string' ? <code class="code">{tool_call_id}</code> : null}
        {reason ? (
          <span class={CUT_OFF.includes(reason) ? 'warn-text push' : 'muted push'}>{reason}</span>
        ) : null}
      </header>
      {typeof thought === 'string' ? <Thought text={thought} /> : null}
      {contentOf(content)}
      {typeof refusal === 'string' && refusal !== '' ? (
        <Notice tone="warn" title={t('line.declined')}>
          <Prose text={refusal} />
        </Notice>
      ) : null}
      {Array.isArray(tool_calls) ? tool_calls.filter(isRecord).map((call) => <ToolCall call={call} />) : null}
    </article>
  )
}

function Thought({ text }: { text: string }): VNode {
  return (
    <details class="raw">
      <summary>{t('line.reasoning')}</summary>
      <Prose text={text} />
    </details>
  )
}

function contentOf(content: unknown): ComponentChildren {
  if (content === null || content === undefined) return null
  if (typeof content === 'string') return textOf(content)
  if (!Array.isArray(content)) return <CodeBlock text={print(content)} label={t('line.answer')} />
  return content.filter(isRecord).map((part) => {
    const { type, text, image_url = pictureOf(part.source), thinking } = part
    if (type === 'text' && typeof text === 'string') return <Said text={text} />
    if (type === 'thinking' && typeof thinking === 'string') return <Thought text={thinking} />
    if (type === 'tool_use') return <ToolCall call={part} />
    const url = isRecord(image_url) ? image_url.url : image_url
    if (typeof url !== 'string') return <CodeBlock text={print(part)} label={String(type)} />
    // Only images in the request itself are drawn: others would call their address.
    return url.startsWith('data:image/') ? (
      <img class="picture" src={url} alt={t('line.picture')} />
    ) : (
      <code class="code">{url}</code>
    )
  })
}

/** The address of an image in Anthropic's format. */
function pictureOf(source: unknown): unknown {
  if (!isRecord(source)) return undefined
  return source.type === 'base64' ? `data:${source.media_type};base64,${source.data}` : source.url
}

/** Shows the text of a message; JSON is indented. */
function textOf(text: string): VNode {
  const parsed = /^\s*[[{]/.test(text) ? parseExact(text) : null
  return parsed === null ? <Said text={text} /> : <CodeBlock text={print(parsed)} label={t('line.answer')} />
}

function ToolCall({ call }: { call: Json }): VNode {
  const { name, input, arguments: given = input } = isRecord(call.function) ? call.function : call
  const parsed = typeof given === 'string' ? parseExact(given) : given
  return (
    <details class="raw">
      <summary>
        {`${t('line.toolCall')} `}
        <code class="code">{String(name ?? '')}</code>
      </summary>
      <CodeBlock text={parsed === null ? String(given) : print(parsed)} label={t('line.toolCall')} />
    </details>
  )
}

export function SchemaVerdict({ asked, message }: { asked: Json | null; message: Json }): VNode | null {
  const schema = schemaOf(asked)
  const text = textOfContent(message.content)
  if (!isRecord(schema) || text === null) return null
  const problems = problemsOf(JSON.parse(print(schema)), text)
  return problems.length === 0 ? (
    <p class="good-text small">{t('line.schemaHolds')}</p>
  ) : (
    <Notice tone="warn" title={t('line.schemaBroken')}>
      <ul>
        {problems.slice(0, 20).map((problem) => (
          <li>{problem}</li>
        ))}
      </ul>
    </Notice>
  )
}

function problemsOf(schema: unknown, text: string): string[] {
  try {
    return schemaProblems(schema, JSON.parse(text))
  } catch {
    return [t('line.notJson')]
  }
}
