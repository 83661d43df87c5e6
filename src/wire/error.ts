// The envelope of every error response.
import { type Static, Type } from 'typebox'
import { ERRORS, type ErrorCode, type ErrorType } from '../domain/errors.ts'

const ERROR_CODES = Object.keys(ERRORS)
const ERROR_TYPES: ErrorType[] = [
  'invalid_request_error',
  'authentication_error',
  'permission_error',
  'rate_limit_error',
  'api_error',
]

export const ErrorEnvelope = Type.Object(
  {
    error: Type.Object({
      type: Type.Unsafe<ErrorType>({ type: 'string', enum: ERROR_TYPES }),
      code: Type.Unsafe<ErrorCode>({ type: 'string', enum: ERROR_CODES, description: 'What to branch on.' }),
      message: Type.String({ description: 'For people; may change.' }),
      param: Type.Optional(
        Type.Union([Type.String(), Type.Null()], {
          description: 'The parameter that is at fault; for OpenAI clients, null where there is none.',
        }),
      ),
      quota: Type.Optional(Type.String({ description: 'On `quota_exceeded`: its name.' })),
      limit_id: Type.Optional(Type.String({ description: 'On limit errors: the limit.' })),
      resets_at: Type.Optional(
        Type.Integer({ description: 'On limit errors: Unix seconds at which its window ends.' }),
      ),
      original_request_id: Type.Optional(
        Type.String({ description: 'On idempotency conflicts: the request whose result is recorded.' }),
      ),
    }),
  },
  { title: 'Error' },
)

export type ErrorEnvelope = Static<typeof ErrorEnvelope>
