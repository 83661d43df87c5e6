// Describes background responses, in the form of OpenAI's Responses API.
import { type Static, Type } from 'typebox'
import { Metadata } from './batch.ts'
import { deletedOf, flag, maybe, maybeText, object, oneOf, orNull, text, timestamp } from './shape.ts'

export const CreateResponse = Type.Object(
  {
    model: maybeText('A model that serves `/v1/responses`.'),
    background: maybe(Type.Boolean(), 'Must be true.'),
    background_options: maybe(
      Type.Object(
        {
          completion_window: maybe(Type.String(), '`soonest`, or a duration such as `2h` or `8h`.'),
          continuation_id: maybe(Type.String(), 'The conversation that the response belongs to.'),
        },
        { additionalProperties: false },
      ),
    ),
    metadata: maybe(Metadata),
  },
  {
    title: 'CreateResponse',
    description: 'The other fields are sent to the model server as they came.',
    additionalProperties: true,
    examples: [{ model: 'llama-3.3-70b', input: 'Hello', background: true }],
  },
)

const RESPONSE_STATUSES = ['queued', 'in_progress', 'completed', 'failed', 'cancelled', 'incomplete'] as const

export const BackgroundResponse = object('BackgroundResponse', {
  id: text('Begins with `resp_`.'),
  object: Type.Literal('response'),
  created_at: timestamp('when it was accepted.'),
  status: oneOf(RESPONSE_STATUSES),
  background: flag('True.'),
  model: orNull(Type.String()),
  output: Type.Array(Type.Unknown(), { description: 'What the model wrote; empty until it has completed.' }),
  error: orNull(Type.Object({ code: Type.String(), message: Type.String() })),
  metadata: Type.Record(Type.String(), Type.String()),
  usage: Type.Unknown({ description: 'As the server reported it; null until it has completed.' }),
})

export type BackgroundResponse = Static<typeof BackgroundResponse> & Record<string, unknown>

export const DeletedResponse = deletedOf('response', 'DeletedResponse')

export const InputItem = Type.Object(
  { id: Type.String(), type: Type.String() },
  { title: 'InputItem', description: 'As the request has it.', additionalProperties: true },
)

/** The items of a response's `input`; an item without an ID gets one by its position. */
export function inputItems(id: string, input: unknown): (Static<typeof InputItem> & object)[] {
  const items: unknown[] = Array.isArray(input) ? input : [{ role: 'user', content: input }]
  return items.map((item, i) => {
    const { content, ...rest } = Object(item)
    const type = rest.role === 'assistant' ? 'output_text' : 'input_text'
    const parts = typeof content === 'string' ? [{ type, text: content }] : content
    return {
      ...{ id: `${id.replace('resp_', 'msg_')}_${i}`, type: 'message', ...rest },
      ...(parts !== undefined && { content: parts }),
    }
  })
}
