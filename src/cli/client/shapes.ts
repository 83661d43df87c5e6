// Shapes of answers that the command line needs and src/wire does not have, or has in a stricter form. Other fields
// of an answer are kept, and shown by --json.
import Type from 'typebox'

/** An object that is shown unchanged. */
export const AnyObject = Type.Object({})

/** A page of any list; its items are checked one by one. */
export const ListPage = Type.Object({
  data: Type.Array(Type.Unknown()),
  has_more: Type.Boolean(),
  next_cursor: Type.Union([Type.String(), Type.Null()]),
})

/** An error of the API of any version, with codes that this version may not know. */
export const ErrorAnswer = Type.Object({
  error: Type.Object({
    code: Type.String(),
    message: Type.String(),
    param: Type.Optional(Type.Union([Type.String(), Type.Null()])),
  }),
})

/** A line of an output or error file. */
export const ResultLine = Type.Object({
  custom_id: Type.String(),
  error: Type.Union([Type.Object({ code: Type.String(), message: Type.String() }), Type.Null()]),
})
