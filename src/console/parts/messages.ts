// A chat as people read it: who said what, pictures, calls of tools, and reasoning. What has another shape is shown
// as the JSON that it is.
import { isObject, parseExact, print } from '../exact-json.ts'
import { type ComponentChildren, h, type View } from '../h.ts'
import { t } from '../i18n.ts'
import { schemaProblems } from '../schema-check.ts'
import { Notice } from './notice.ts'
import { CodeBlock, Prose, visibleText } from './text.ts'

type Json = Record<string, unknown>

/** `body`: what was asked. */
export function Messages({ body }: { body: Json }): View {
  const { messages, ...rest } = body
  if (!Array.isArray(messages)) return h(CodeBlock, { text: print(body), label: t('line.prompt') })
  return h('div', { class: 'chat' }, [
    ...messages.filter(isObject).map((message) => h(Message, { message })),
    h('details', { class: 'raw' }, [
      h('summary', null, t('line.parameters')),
      h(CodeBlock, { text: print(rest), label: t('line.parameters') }),
    ]),
  ])
}

/** `body`: what was answered; `asked`: the request, whose schema the answer is checked against. */
export function Answer({ body, asked }: { body: unknown; asked: Json | null }): View {
  const choices = isObject(body) && Array.isArray(body.choices) ? body.choices.filter(isObject) : []
  const chats = choices.filter(({ message }) => isObject(message))
  if (chats.length === 0) return h(CodeBlock, { text: print(body), label: t('line.answer') })
  return h(
    'div',
    { class: 'chat' },
    chats.map(({ message, finish_reason }) =>
      h('div', { class: 'stack tight' }, [
        h(Message, {
          message: isObject(message) ? message : {},
          reason: typeof finish_reason === 'string' ? finish_reason : '',
        }),
        h(SchemaVerdict, { asked, message: isObject(message) ? message : {} }),
      ]),
    ),
  )
}

function Message({ message, reason = '' }: { message: Json; reason?: string }): View {
  const { role, content, reasoning_content, reasoning, refusal, tool_calls, tool_call_id } = message
  const thought = [reasoning_content, reasoning].find((text) => typeof text === 'string' && text !== '')
  return h('article', { class: `message ${role === 'assistant' ? 'assistant' : ''}` }, [
    h('header', { class: 'message-role' }, [
      visibleText(String(role ?? '')),
      typeof tool_call_id === 'string' ? h('code', { class: 'code' }, visibleText(tool_call_id)) : null,
      reason
        ? h('span', { class: reason === 'length' ? 'warn-text push' : 'muted push' }, visibleText(reason))
        : null,
    ]),
    typeof thought === 'string'
      ? h('details', { class: 'raw' }, [h('summary', null, t('line.reasoning')), h(Prose, { text: thought })])
      : null,
    contentOf(content),
    typeof refusal === 'string' && refusal !== ''
      ? h(Notice, { tone: 'warn', title: t('line.declined') }, h(Prose, { text: refusal }))
      : null,
    Array.isArray(tool_calls) ? tool_calls.filter(isObject).map((call) => h(ToolCall, { call })) : null,
  ])
}

function contentOf(content: unknown): ComponentChildren {
  if (content === null || content === undefined) return null
  if (typeof content === 'string') return textOf(content)
  if (!Array.isArray(content)) return h(CodeBlock, { text: print(content), label: t('line.answer') })
  return content.filter(isObject).map((part) => {
    const { type, text, image_url } = part
    if (type === 'text' && typeof text === 'string') return h(Prose, { text })
    const url = isObject(image_url) ? image_url.url : image_url
    if (typeof url !== 'string') return h(CodeBlock, { text: print(part), label: String(type) })
    // Only a picture that is part of the request is drawn: the address of another would be called by looking.
    return url.startsWith('data:image/')
      ? h('img', { class: 'picture', src: url, alt: t('line.picture') })
      : h('code', { class: 'code' }, visibleText(url))
  })
}

/** JSON is set as JSON, everything else as text. */
function textOf(text: string): View {
  const parsed = /^\s*[[{]/.test(text) ? parseExact(text) : null
  return parsed === null ? h(Prose, { text }) : h(CodeBlock, { text: print(parsed), label: t('line.answer') })
}

function ToolCall({ call }: { call: Json }): View {
  const { name, arguments: given } = isObject(call.function) ? call.function : call
  const parsed = typeof given === 'string' ? parseExact(given) : given
  return h('div', { class: 'tool-call' }, [
    h('div', null, [
      h('span', { class: 'muted' }, `${t('line.toolCall')} `),
      h('code', { class: 'code' }, visibleText(String(name ?? ''))),
    ]),
    h(CodeBlock, { text: parsed === null ? String(given) : print(parsed), label: t('line.toolCall') }),
  ])
}

function SchemaVerdict({ asked, message }: { asked: Json | null; message: Json }): View | null {
  const format = asked?.response_format
  const schema = isObject(format) && isObject(format.json_schema) ? format.json_schema.schema : null
  if (!isObject(schema) || typeof message.content !== 'string') return null
  const problems = problemsOf(JSON.parse(print(schema)), message.content)
  return problems.length === 0
    ? h('p', { class: 'good-text small' }, t('line.schemaHolds'))
    : h(
        Notice,
        { tone: 'warn', title: t('line.schemaBroken') },
        h(
          'ul',
          null,
          problems.slice(0, 20).map((problem) => h('li', null, visibleText(problem))),
        ),
      )
}

function problemsOf(schema: unknown, text: string): string[] {
  try {
    return schemaProblems(schema, JSON.parse(text))
  } catch {
    return [t('line.notJson')]
  }
}
