// In which form a call is answered: the header says, else the key.
import type { FastifyRequest } from 'fastify'
import { Type } from 'typebox'
import { COMPAT_MODES, type CompatMode, isCompatMode } from '../../domain/api-key.ts'
import { ApiError } from '../../domain/errors.ts'

const HEADER = 'X-Offpeak-Compat'
/** The API's own form, for a call with a key that has another one. */
const OWN = 'none'

export const CompatHeader = Type.Object({
  [HEADER]: Type.Optional(
    Type.Enum([...COMPAT_MODES, OWN], {
      description: 'Answers as clients of that API expect them, whatever the key says.',
    }),
  ),
})

/** Undefined without the header. Throws invalid_request. */
export function compatOfHeader(headers: NodeJS.Dict<string | string[]>): CompatMode | null | undefined {
  const value = headers[HEADER.toLowerCase()]
  if (value === undefined) return undefined
  if (value === OWN) return null
  if (typeof value === 'string' && isCompatMode(value)) return value
  const known = [...COMPAT_MODES, OWN].map((mode) => `"${mode}"`).join(' or ')
  throw new ApiError('invalid_request', `The header ${HEADER} must be ${known}.`, { param: HEADER })
}

/** How objects are rendered. */
export interface View {
  region: string
  compat: CompatMode | null
}

export function viewOf({ compat }: Pick<FastifyRequest, 'compat'>, region: string): View {
  return { region, compat }
}
