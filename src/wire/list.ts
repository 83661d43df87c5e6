// The one envelope of every list, newest first, and the query that walks it.
import { type Static, type TSchema, Type } from 'typebox'

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
    Type.String({ description: 'The ID of an object: the list goes on behind it. Pass `next_cursor` here.' }),
  ),
  after: Type.Optional(
    Type.String({
      description: 'The same under the name that OpenAI clients use; it wins if both are given.',
    }),
  ),
}

const PageQueryObject = Type.Object(PageQuery)
export type PageQuery = Static<typeof PageQueryObject>

export function listOf<T extends TSchema>(item: T, title: string) {
  return Type.Object(
    {
      object: Type.Literal('list'),
      data: Type.Array(item),
      has_more: Type.Boolean(),
      next_cursor: Type.Union([Type.String(), Type.Null()], {
        description: 'The `starting_after` of the next page; null on the last.',
      }),
      first_id: Type.Union([Type.String(), Type.Null()]),
      last_id: Type.Union([Type.String(), Type.Null()]),
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
