// Signing in to the console: an API key or a one-time link becomes a session, which a cookie carries.
import { type Static, Type } from 'typebox'
import { SCOPES, type Scope } from '../domain/api-key.ts'
import { timestamp } from './timestamp.ts'

export const CreateConsoleSession = Type.Object(
  {
    api_key: Type.Optional(Type.String({ description: 'An API key; it is not kept.' })),
    link: Type.Optional(Type.String({ description: 'The `token` of a one-time link, instead of a key.' })),
  },
  { title: 'CreateConsoleSession', additionalProperties: false },
)

export type CreateConsoleSession = Static<typeof CreateConsoleSession>

export const ConsoleSession = Type.Object(
  {
    object: Type.Literal('console_session'),
    project: Type.Object({ id: Type.String(), name: Type.String(), plan: Type.String() }),
    api_key_id: Type.String({
      description: 'The key that it was made with; it ends when the key is revoked.',
    }),
    scopes: Type.Array(Type.Unsafe<Scope>({ type: 'string', enum: [...SCOPES] })),
    region: Type.String(),
    version: Type.String({ description: 'Of the service.' }),
    expires_at: Type.Union([Type.Integer({ minimum: 0 }), Type.Null()], {
      description: 'Unix seconds at which it ends; null where an API key authenticates the call itself.',
    }),
  },
  { title: 'ConsoleSession' },
)

export type ConsoleSession = Static<typeof ConsoleSession>

export const ConsoleSessionEnded = Type.Object(
  { object: Type.Literal('console_session'), deleted: Type.Literal(true) },
  { title: 'ConsoleSessionEnded' },
)

export const ConsoleLink = Type.Object(
  {
    object: Type.Literal('console_link'),
    token: Type.String({ description: 'Signs in once.' }),
    path: Type.String({ description: 'Where a browser uses it: `/console#link=…`.' }),
    expires_at: timestamp('when it ends unused.'),
  },
  { title: 'ConsoleLink' },
)

export type ConsoleLink = Static<typeof ConsoleLink>
