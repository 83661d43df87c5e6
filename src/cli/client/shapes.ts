// What the command line relies on where src/wire has no shape for it, or one that is stricter than a reader
// should be. Whatever else an answer holds is kept, and shown by --json.
import Type from 'typebox'

/** An object that is shown as it came. */
export const AnyObject = Type.Object({})

/** A page of any list; each item is checked by itself. */
export const ListPage = Type.Object({
  data: Type.Array(Type.Unknown()),
  has_more: Type.Boolean(),
  next_cursor: Type.Union([Type.String(), Type.Null()]),
})

/** An error of this API in any version: a code that this one does not know is still an error. */
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

/** As much of an input line as it takes to find it again. */
export const InputLine = Type.Object({ custom_id: Type.String() })
