// Describes the envelope of every list, newest first, and the query that pages through it.
import { type Static, type TSchema, Type } from 'typebox'
import { ERROR_TYPES, ERRORS, type ErrorCode } from '../domain/errors.ts'
import { between, maybe, maybeText, object, oneOf, orNull, text } from './shape.ts'

export const PAGE_LIMIT_DEFAULT = 20
const PAGE_LIMIT_MAX = 100

export const PageQuery = {
  order: Type.Optional(
    Type.Enum(['desc', 'asc'], { default: 'desc', description: 'Newest first, or with `asc` oldest first.' }),
  ),
  limit: Type.Optional(between(1, PAGE_LIMIT_MAX, 'How many objects to return.', PAGE_LIMIT_DEFAULT)),
  starting_after: maybeText('The ID of an object: the list goes on behind it. Pass `next_cursor` here.'),
  after: maybeText('The same under the name that OpenAI clients use; it wins if both are given.'),
}

const PageQueryObject = Type.Object(PageQuery)
export type PageQuery = Static<typeof PageQueryObject>

/** `title`: where it is not that of its objects with `List` behind it. */
export function listOf<T extends TSchema>(item: T, title = `${Reflect.get(item, 'title')}List`) {
  return object(title, {
    object: Type.Literal('list'),
    data: Type.Array(item),
    has_more: Type.Boolean(),
    next_cursor: orNull(Type.String(), 'The `starting_after` of the next page; null on the last.'),
    first_id: orNull(Type.String()),
    last_id: orNull(Type.String()),
  })
}

export interface List<T> {
  object: 'list'
  data: T[]
  has_more: boolean
  next_cursor: string | null
  first_id: string | null
  last_id: string | null
}

// The envelope of every error response.

export const ErrorEnvelope = object('Error', {
  error: Type.Object({
    type: oneOf(ERROR_TYPES),
    code: Type.Unsafe<ErrorCode>({
      type: 'string',
      enum: Object.keys(ERRORS),
      description: 'What to branch on.',
    }),
    message: text('For people; may change.'),
    param: maybe(
      Type.String(),
      'The parameter that is at fault; for OpenAI clients, null where there is none.',
    ),
    quota: maybeText('On `quota_exceeded`: its name.'),
    limit_id: maybeText('On limit errors: the limit.'),
    resets_at: Type.Optional(
      Type.Integer({ description: 'On limit errors: Unix seconds at which its window ends.' }),
    ),
    original_request_id: maybeText('On idempotency conflicts: the request whose result is recorded.'),
  }),
})
