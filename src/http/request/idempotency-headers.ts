// The headers that make a call happen once.
import { Type } from 'typebox'

export const IdempotencyHeaders = Type.Object({
  'Idempotency-Key': Type.Optional(
    Type.String({ minLength: 1, maxLength: 255, description: 'Names the job, so that it is created once.' }),
  ),
  'Idempotency-Mode': Type.Optional(
    Type.Enum(['replay', 'implicit'], {
      description:
        'What a repeated call gets: the first answer, as without this header, or a 409 that names the first call.',
    }),
  ),
})
