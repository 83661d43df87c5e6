// The one envelope of every list, newest first, and the query that walks it.
import { type Static, type TSchema, Type } from 'typebox'
import { ERROR_TYPES, ERRORS, type ErrorCode } from '../domain/errors.ts'
import { oneOf, orNull, text } from './shape.ts'

export const PAGE_LIMIT_DEFAULT = 20
const PAGE_LIMIT_MAX = 100

export const PageQuery = {
  order: Type.Optional(
    Type.Enum(['desc', 'asc'], { default: 'desc', description: 'Newest first, or with `asc` oldest first.' }),
  ),
  limit: Type.Optional(
    Type.Integer({
      minimum: 1,
      maximum: PAGE_LIMIT_MAX,
      default: PAGE_LIMIT_DEFAULT,
      description: 'How many objects to return.',
    }),
  ),
  starting_after: Type.Optional(
    text('The ID of an object: the list goes on behind it. Pass `next_cursor` here.'),
  ),
  after: Type.Optional(text('The same under the name that OpenAI clients use; it wins if both are given.')),
}

const PageQueryObject = Type.Object(PageQuery)
export type PageQuery = Static<typeof PageQueryObject>

export function listOf<T extends TSchema>(item: T, title: string) {
  return Type.Object(
    {
      object: Type.Literal('list'),
      data: Type.Array(item),
      has_more: Type.Boolean(),
      next_cursor: orNull(Type.String(), 'The `starting_after` of the next page; null on the last.'),
      first_id: orNull(Type.String()),
      last_id: orNull(Type.String()),
    },
    { title },
  )
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

export const ErrorEnvelope = Type.Object(
  {
    error: Type.Object({
      type: oneOf(ERROR_TYPES),
      code: Type.Unsafe<ErrorCode>({
        type: 'string',
        enum: Object.keys(ERRORS),
        description: 'What to branch on.',
      }),
      message: text('For people; may change.'),
      param: Type.Optional(
        orNull(
          Type.String(),
          'The parameter that is at fault; for OpenAI clients, null where there is none.',
        ),
      ),
      quota: Type.Optional(text('On `quota_exceeded`: its name.')),
      limit_id: Type.Optional(text('On limit errors: the limit.')),
      resets_at: Type.Optional(
        Type.Integer({ description: 'On limit errors: Unix seconds at which its window ends.' }),
      ),
      original_request_id: Type.Optional(
        text('On idempotency conflicts: the request whose result is recorded.'),
      ),
    }),
  },
  { title: 'Error' },
)

export type ErrorEnvelope = Static<typeof ErrorEnvelope>
