// Makes the small shapes of which requests and answers consist, and the envelopes of lists and errors. A shape of a set of
// names, or of text or null, has the type of its values; `description` is its text in the API reference.
import { type Static, type TProperties, type TSchema, Type } from 'typebox'
import { ERROR_CODES, ERROR_TYPES, type ErrorCode, openaiError } from '../domain/errors.ts'

/** An object with a title in the API reference, and an example. */
export function object<T extends TProperties>(title: string, properties: T, example?: object) {
  return Type.Object(properties, { title, ...(example && { examples: [example] }) })
}

export function text(description: string) {
  return Type.String({ description })
}

/** The shape of a text that may be left out. */
export function maybeText(description: string) {
  return Type.Optional(text(description))
}

export function flag(description: string) {
  return Type.Boolean({ description })
}

/** The shape of a query parameter that is `true` or `false`. */
export function flagText(description: string) {
  return Type.Optional(Type.Enum(['true', 'false'], { description }))
}

/** The shape of a query parameter with words to search for. */
export function words(description: string) {
  return Type.Optional(Type.String({ maxLength: 200, description }))
}

/** The shape of a whole number that is not negative. */
export function count(description?: string) {
  return Type.Integer({ minimum: 0, ...said(description) })
}

/** A whole number with bounds; `byDefault`: the value where it is left out. */
export function between(minimum: number, maximum: number, description: string, byDefault?: number) {
  const rest = byDefault === undefined ? {} : { default: byDefault }
  return Type.Integer({ minimum, maximum, ...rest, description })
}

/** The shape of a number that is not negative. */
export function amount(description?: string) {
  return Type.Number({ minimum: 0, ...said(description) })
}

/** The shape of a time in Unix seconds. */
export function timestamp(description: string) {
  return count(`Unix seconds; ${description}`)
}

/** The shape of a query parameter with a time in Unix seconds. */
export function time(description: string) {
  return Type.Optional(between(0, 10 ** 11, `Unix seconds: ${description}`))
}

/** The shape of one of several names; `byDefault`: the name where it is left out. */
export function oneOf<T extends string>(names: readonly T[], description?: string, byDefault?: NoInfer<T>) {
  const rest = byDefault === undefined ? {} : { default: byDefault }
  return Type.Unsafe<T>({ type: 'string', enum: [...names], ...rest, ...said(description) })
}

export function arrayOf<T extends TSchema>(items: T, description: string) {
  return Type.Array(items, { description })
}

export function anything(description: string) {
  return Type.Unknown({ description })
}

export function orNull<T extends TSchema>(shape: T, description?: string) {
  return Type.Union([shape, Type.Null()], said(description))
}

/** A shape or null, which may also be left out. */
export function maybe<T extends TSchema>(shape: T, description?: string) {
  return Type.Optional(orNull(shape, description))
}

function said(description: string | undefined): { description?: string } {
  return description === undefined ? {} : { description }
}

/** The retention of content that is not kept for good. */
export const RetentionShape = object('Retention', {
  results: text(
    'How long results are kept once they were fetched, such as `0h`; the input ends with its batch.',
  ),
  grace: maybeText(
    'How long they are kept after the end of the batch if nobody fetches them; a day by default.',
  ),
})

/** The shape of the answer to a DELETE. */
export function deletedOf<O extends string>(object: O, title: string) {
  return Type.Object(
    { id: Type.String(), object: Type.Literal(object), deleted: Type.Literal(true) },
    { title },
  )
}

// The envelope of every list, newest first, and the query that pages through it.

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

/** A list of objects; `title`: by default the objects' title and `List`. */
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

export type List<T> = Omit<Static<ReturnType<typeof listOf>>, 'data'> & { data: T[] }

// The envelope of every error response.

export const ErrorEnvelope = object('Error', {
  error: Type.Object({
    type: oneOf(ERROR_TYPES),
    code: Type.Unsafe<ErrorCode>({
      type: 'string',
      enum: [...new Set(ERROR_CODES.flatMap((code) => [code, openaiError(code).code]))],
      description: 'What to branch on.',
    }),
    message: text('For people; may change.'),
    param: maybe(
      Type.String(),
      'The parameter that is at fault; for OpenAI clients, null where there is none.',
    ),
    quota: maybeText('On `quota_exceeded`: its name.'),
    never_fits: maybe(Type.Boolean(), 'On `quota_exceeded`: this call alone is larger than the quota.'),
    limit_id: maybeText('On limit errors: the limit.'),
    resets_at: Type.Optional(
      Type.Integer({ description: 'On limit errors: Unix seconds at which its window ends.' }),
    ),
    original_request_id: maybeText('On idempotency conflicts: the request whose result is recorded.'),
  }),
})
