// Describes projects, their API keys and quotas as the API shows them, and sessions of the console.
import { type Static, Type } from 'typebox'
import { COMPAT_MODES, SCOPES } from '../domain/api-key.ts'
import { QUOTA_NAMES } from '../domain/plan.ts'
import { CreateWebhook } from './event.ts'
import { CreateKeyLimit, CreateLimit, LimitObject } from './limit.ts'
import {
  amount,
  anything,
  arrayOf,
  count,
  maybe,
  maybeText,
  object,
  oneOf,
  orNull,
  RetentionShape,
  text,
  timestamp,
} from './shape.ts'

// An API key as the API shows it, and the request that issues one.

const ScopeName = oneOf(SCOPES)

const KEY = {
  id: text('Begins with `key_`.'),
  object: Type.Literal('api_key'),
  name: orNull(Type.String(), 'Of a token: its subject.'),
  issuer: maybeText('The issuer of the tokens that this row stands for; absent for keys and persons.'),
  project_id: Type.String(),
  project: text("The project's name."),
  scopes: Type.Array(ScopeName),
  compat: orNull(
    Type.Enum([...COMPAT_MODES]),
    'The clients whose form its answers have; null: the usual form.',
  ),
  retention: Type.Optional(RetentionShape),
  created: timestamp('when it was issued.'),
  last_used_at: orNull(count(), 'Unix seconds, to about a minute; null when it has not been used.'),
  revoked_at: orNull(count()),
}

export const ApiKeyObject = object('ApiKey', KEY)
export type ApiKeyObject = Static<typeof ApiKeyObject>

export const NewApiKey = object('NewApiKey', {
  ...KEY,
  key: text('The key itself, shown this once.'),
  limit: Type.Optional(LimitObject),
})

export const CreateApiKey = object('CreateApiKey', {
  name: Type.Optional(Type.String({ minLength: 1, maxLength: 200 })),
  scopes: Type.Optional(
    Type.Array(ScopeName, {
      minItems: 1,
      uniqueItems: true,
      description:
        'Only scopes that the calling key has. All of them but `operator` and `keys:write`, if left out; with a `limit` also without `limits:write`, which could lift it.',
    }),
  ),
  compat: Type.Optional(
    Type.Enum([...COMPAT_MODES], { description: 'Answers as strict clients of that API expect them.' }),
  ),
  project_id: maybeText('Another project than that of the calling key; needs the scope `operator`.'),
  limit: Type.Optional(CreateKeyLimit),
  retention: maybe(
    RetentionShape,
    'Content of its batches is kept no longer; a plan and a batch can only shorten it.',
  ),
})

export const RevokeTokens = object('RevokeTokens', {
  subject: Type.Optional(
    Type.String({
      minLength: 1,
      maxLength: 255,
      description: 'Every token with this `sub`, in all projects.',
    }),
  ),
  token_id: Type.Optional(
    Type.String({ minLength: 1, maxLength: 1024, description: 'The one token with this `jti`.' }),
  ),
})

export const ProjectObject = object('Project', {
  id: text('Begins with `proj_`.'),
  object: Type.Literal('project'),
  name: Type.String(),
  plan: Type.String(),
  quotas: Type.Record(Type.String(), orNull(count()), {
    description: 'Of its plan; null: unlimited.',
  }),
  created: timestamp('when it was made.'),
})

export type ProjectObject = Static<typeof ProjectObject>

const Name = Type.String({ minLength: 1, maxLength: 200, description: 'Unique in the service.' })
const PlanName = text('A plan of the configuration.')

export const CreateProject = object('CreateProject', { name: Name, plan: Type.Optional(PlanName) })

export const UpdateProject = object('UpdateProject', { plan: PlanName })

// A project as it is wanted, and what was changed to bring it there.

const AppliedWebhook = object('AppliedWebhook', {
  ...CreateWebhook.properties,
  enabled: Type.Optional(Type.Boolean()),
})

export const ApplyProject = object('ApplyProject', {
  name: Name,
  plan: Type.Optional(PlanName),
  limits: Type.Optional(Type.Array(CreateLimit)),
  webhooks: Type.Optional(Type.Array(AppliedWebhook)),
})
export type ApplyProject = Static<typeof ApplyProject>

export const ProjectChange = object('ProjectChange', {
  action: oneOf(['create', 'update', 'delete']),
  kind: oneOf(['project', 'limit', 'webhook']),
  id: Type.String(),
  before: anything('How it was; null of what is created.'),
  after: anything(
    'How it is; null of what is deleted. A webhook that is created has its `secret`, this once.',
  ),
})
export type ProjectChange = Static<typeof ProjectChange>

export const AppliedProject = object('AppliedProject', {
  object: Type.Literal('applied_project'),
  project: text("The project's name."),
  project_id: text('Of a project that a dry run would make, none that stays.'),
  dry_run: Type.Boolean(),
  changes: arrayOf(ProjectChange, 'What was changed, or would be. Empty: the project is as described.'),
})
export type AppliedProject = Static<typeof AppliedProject>

// The quotas of a project and what it has of each, as the API shows them.

const Quota = object('Quota', {
  limit: orNull(count(), 'Null: there is none.'),
  used: orNull(
    count(),
    'Null where each call is looked at alone; of `queued_tokens`, that of the model with the most.',
  ),
  by_model: Type.Optional(Type.Record(Type.String(), count(), { description: 'Of `queued_tokens`.' })),
})

export const QuotasObject = object(
  'Quotas',
  {
    object: Type.Literal('quotas'),
    plan: Type.String(),
    completion_windows: arrayOf(Type.String(), 'Those that the plan has.'),
    live_price_share: maybe(
      amount(),
      'The price of a line as a share of that of a live call, where the operator says it.',
    ),
    quotas: Type.Record(Type.Enum([...QUOTA_NAMES]), Quota),
  },
  {
    object: 'quotas',
    plan: 'payg',
    completion_windows: ['24h'],
    quotas: {
      stored_bytes: { limit: 1099511627776, used: 4280 },
      open_batches: { limit: 1000, used: 1 },
      queued_lines: { limit: 100000000, used: 8 },
      queued_tokens: { limit: 90000000, used: 45200, by_model: { 'qwen3-8b': 45200 } },
      limits: { limit: 10000, used: 2 },
      webhooks: { limit: 20, used: 0 },
      entities_per_batch: { limit: 5000, used: null },
      uploads: { limit: 16, used: 0 },
      downloads: { limit: 64, used: 0 },
      streams: { limit: 100, used: 1 },
      keys: { limit: 100, used: 3 },
    },
  },
)
export type QuotasObject = Static<typeof QuotasObject>

// Signing in to the console: an API key or a one-time link becomes a session, which a cookie carries.

export const CreateConsoleSession = object('CreateConsoleSession', {
  api_key: maybeText('An API key; it is not kept.'),
  link: maybeText('The `token` of a one-time link, instead of a key.'),
})

export const ConsoleSession = object('ConsoleSession', {
  object: Type.Literal('console_session'),
  project: Type.Object({ id: Type.String(), name: Type.String(), plan: Type.String() }),
  api_key_id: text('The key that it was made with; it ends when the key is revoked.'),
  scopes: Type.Array(ScopeName),
  region: Type.String(),
  version: text('Of the service.'),
  expires_at: orNull(
    count(),
    'Unix seconds at which it ends; null where an API key or a proxy authenticates each call.',
  ),
  person: maybeText('Who is signed in, where a proxy says so; `api_key_id` then stands for the person.'),
  sign_out: Type.Optional(orNull(Type.String(), 'Where the person signs out; null: at the proxy.')),
})

export type ConsoleSession = Static<typeof ConsoleSession>

export const ConsoleSessionEnded = object('ConsoleSessionEnded', {
  object: Type.Literal('console_session'),
  deleted: Type.Literal(true),
})

export const ConsoleLink = object('ConsoleLink', {
  object: Type.Literal('console_link'),
  token: text('Signs in once.'),
  path: text('Where a browser uses it: `/console#link=…`.'),
  expires_at: timestamp('when it ends unused.'),
})

export type ConsoleLink = Static<typeof ConsoleLink>
