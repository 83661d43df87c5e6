// A finished answer as a stream of events, a piece for each token, as a client sees it that asks for `stream: true`.
import { isRecord } from '../../json-record.ts'

interface StreamedAnswer {
  /** The event of one more token. */
  piece(tokens: number): string
  /** What comes after the last token: the rest, the reason, the usage where it was asked for, and the end. */
  end(): string
}

export function streamedAnswer(text: string, withUsage: boolean): StreamedAnswer {
  const answer: Record<string, unknown> = JSON.parse(text)
  const { id, created, model, usage, choices } = answer
  const choice: unknown = Array.isArray(choices) ? choices[0] : null
  const first = isRecord(choice) ? choice : {}
  const message = isRecord(first.message) ? first.message : null
  const content = message === null ? first.text : message.content
  const words = typeof content === 'string' ? content.split(/(?<= )/) : []
  const object = message === null ? 'text_completion' : 'chat.completion.chunk'
  let sent = 0

  const event = (value: object): string =>
    `data: ${JSON.stringify({ id, object, created, model, ...value })}\n\n`
  const chunk = (words: string, finish_reason: unknown): string => {
    const delta = message === null ? { text: words } : { delta: deltaOf(words) }
    return event({ choices: [{ index: 0, ...delta, logprobs: null, finish_reason }] })
  }
  const deltaOf = (words: string): object => ({
    ...(sent === 0 ? { role: 'assistant' } : {}),
    ...(Array.isArray(message?.tool_calls) ? { tool_calls: message.tool_calls } : { content: words }),
  })

  return {
    piece(tokens) {
      const piece = chunk(words.slice(sent, tokens).join(''), null)
      sent = tokens
      return piece
    },
    end() {
      const last = chunk(words.slice(sent).join(''), first.finish_reason)
      return `${last}${withUsage ? event({ choices: [], usage }) : ''}data: [DONE]\n\n`
    },
  }
}
