// Makes the small shapes of which requests and answers consist. A shape of a set of names, or of text or null, has the
// type of its values; `description` is its text in the API reference.
import { type TProperties, type TSchema, Type } from 'typebox'

/** An object that the reference tells by its own name, with an example of it. */
export function object<T extends TProperties>(title: string, properties: T, example?: object) {
  return Type.Object(properties, { title, ...(example && { examples: [example] }) })
}

export function text(description: string) {
  return Type.String({ description })
}

/** Text that may be left out. */
export function maybeText(description: string) {
  return Type.Optional(text(description))
}

export function flag(description: string) {
  return Type.Boolean({ description })
}

/** A whole number, 0 or more. */
export function count(description?: string) {
  return Type.Integer({ minimum: 0, ...said(description) })
}

/** A whole number with bounds; `byDefault`: what holds where it is left out. */
export function between(minimum: number, maximum: number, description: string, byDefault?: number) {
  const rest = byDefault === undefined ? {} : { default: byDefault }
  return Type.Integer({ minimum, maximum, ...rest, description })
}

/** A number, 0 or more. */
export function amount(description?: string) {
  return Type.Number({ minimum: 0, ...said(description) })
}

/** Unix seconds. */
export function timestamp(description: string) {
  return count(`Unix seconds; ${description}`)
}

/** Unix seconds that a query may name. */
export function time(description: string) {
  return Type.Optional(between(0, 10 ** 11, `Unix seconds: ${description}`))
}

/** One of these names; `byDefault`: which, where it is left out. */
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

/** A shape or null, which may be left out as well. */
export function maybe<T extends TSchema>(shape: T, description?: string) {
  return Type.Optional(orNull(shape, description))
}

function said(description: string | undefined): { description?: string } {
  return description === undefined ? {} : { description }
}

/** The answer to a DELETE. */
export function deletedOf<O extends string>(object: O, title: string) {
  return Type.Object(
    { id: Type.String(), object: Type.Literal(object), deleted: Type.Literal(true) },
    { title },
  )
}
