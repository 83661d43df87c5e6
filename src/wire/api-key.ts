// An API key as the API shows it, and the request that issues one.
import { type Static, Type } from 'typebox'
import { SCOPES, type Scope } from '../domain/api-key.ts'
import { timestamp } from './timestamp.ts'

const TimeOrNull = Type.Union([Type.Integer({ minimum: 0 }), Type.Null()])
const ScopeName = Type.Unsafe<Scope>({ type: 'string', enum: [...SCOPES] })

const KEY = {
  id: Type.String({ description: 'Begins with `key_`.' }),
  object: Type.Literal('api_key'),
  name: Type.Union([Type.String(), Type.Null()]),
  project_id: Type.String(),
  project: Type.String({ description: "The project's name." }),
  scopes: Type.Array(ScopeName),
  created: timestamp('when it was issued.'),
  last_used_at: Type.Union([Type.Integer({ minimum: 0 }), Type.Null()], {
    description: 'Unix seconds, to about a minute; null when it has not been used.',
  }),
  revoked_at: TimeOrNull,
}

export const ApiKeyObject = Type.Object(KEY, { title: 'ApiKey' })
export type ApiKeyObject = Static<typeof ApiKeyObject>

export const NewApiKey = Type.Object(
  { ...KEY, key: Type.String({ description: 'The key itself, shown this once.' }) },
  { title: 'NewApiKey' },
)

export const CreateApiKey = Type.Object(
  {
    name: Type.Optional(Type.String({ minLength: 1, maxLength: 200 })),
    scopes: Type.Optional(
      Type.Array(ScopeName, {
        minItems: 1,
        uniqueItems: true,
        description:
          'Only scopes that the calling key has. All of them but `operator` and `keys:write`, if left out.',
      }),
    ),
    project_id: Type.Optional(
      Type.String({
        description: 'Another project than that of the calling key; needs the scope `operator`.',
      }),
    ),
  },
  { title: 'CreateApiKey', additionalProperties: false },
)

export type CreateApiKey = Static<typeof CreateApiKey>
