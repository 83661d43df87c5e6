// Times on the wire.
import { Type } from 'typebox'

/** Unix seconds. */
export function timestamp(description: string) {
  return Type.Integer({ minimum: 0, description: `Unix seconds; ${description}` })
}
