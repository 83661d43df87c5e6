// Describes a limit as the API shows it, and the requests that make and change one.
import { type Static, Type } from 'typebox'
import {
  LIMIT_ACTIONS,
  LIMIT_METRICS,
  LIMIT_SCOPES,
  LIMIT_WINDOWS,
  type LimitScope,
} from '../domain/limit.ts'
import {
  amount,
  arrayOf,
  deletedOf,
  maybe,
  maybeText,
  object,
  oneOf,
  orNull,
  text,
  timestamp,
} from './shape.ts'

const NAME_CHARACTERS_MAX = 512
const DESCRIPTION_CHARACTERS_MAX = 500
const FRACTIONS_MAX = 20

export const Scope = oneOf(
  LIMIT_SCOPES,
  'Whose spending counts: one entity’s, that of each entity of a type on its own, an API key’s, all, or all with one model.',
)
const Metric = oneOf(
  LIMIT_METRICS,
  '`requests` are lines that were sent: each counts once, however often it was tried.',
)
const Window = oneOf(LIMIT_WINDOWS, 'A part of the UTC calendar; a week begins on Monday.')
const Action = oneOf(LIMIT_ACTIONS, '`block` rejects work that may pass the cap; `notify` only tells of it.')
const Amount = amount('The cap: USD, tokens or lines, as the metric says.')
const NotifyAt = Type.Array(Type.Number({ exclusiveMinimum: 0, maximum: 1 }), {
  uniqueItems: true,
  maxItems: FRACTIONS_MAX,
  description: 'Fractions of the cap, ascending, above 0 and at most 1: an event tells when each is met.',
})
const Name = Type.String({ minLength: 1, maxLength: NAME_CHARACTERS_MAX })
const Description = Type.String({
  maxLength: DESCRIPTION_CHARACTERS_MAX,
  description: 'Shown in the error message of the limit.',
})

const EXAMPLE = {
  scope: 'entity',
  entity: 'user:42',
  metric: 'cost_usd',
  amount: 25,
  window: 'month',
  description: 'Ask finance@example.com for more.',
  notify_at: [0.5, 0.8],
} as const

export const LimitObject = object(
  'Limit',
  {
    id: text('Begins with `lim_`.'),
    object: Type.Literal('limit'),
    scope: Scope,
    entity: maybeText('With scope `entity`.'),
    entity_type: maybeText('With scope `entity_type`.'),
    key: maybeText('With scope `key`: the ID of the key.'),
    model: maybeText('The only model whose lines count.'),
    metric: Metric,
    amount: Amount,
    window: Window,
    action: Action,
    description: Type.Optional(Type.String()),
    notify_at: NotifyAt,
    created: timestamp('when it was made.'),
    unpriced_models: Type.Optional(
      arrayOf(
        Type.String(),
        'In the answer that made a limit of `cost_usd`: the models without a price, if any. Their lines cost 0, so the cap holds none of them back.',
      ),
    ),
  },
  {
    id: 'lim_01k0a6w3f2n8s5v7y1c4e6g9hj',
    object: 'limit',
    ...EXAMPLE,
    action: 'block',
    created: 1767225660,
  },
)
export type LimitObject = Static<typeof LimitObject>

/** The terms of a new limit, whatever it counts. */
const TERMS = {
  metric: Metric,
  amount: Amount,
  window: Window,
  action: maybe(Action, '`block` if not given.'),
  description: maybe(Description),
  notify_at: maybe(NotifyAt),
}

export const CreateLimit = object(
  'CreateLimit',
  {
    scope: Scope,
    entity: maybe(Name, 'With scope `entity`, only.'),
    entity_type: maybe(Name, 'With scope `entity_type`, only; such as `user`.'),
    key: maybe(Name, 'With scope `key`, only: the ID of an API key of the project.'),
    model: maybe(
      Name,
      'Counts lines of this model alone. With scope `model` it is required; with any other it may be given.',
    ),
    ...TERMS,
  },
  EXAMPLE,
)
export type CreateLimit = Static<typeof CreateLimit>

const NamedText = { type: 'string', pattern: '\\S' }
/** The exclusive maximum of amounts in USD: in nano-dollars, amounts stay below 2^53. */
const USD_EXCLUSIVE_MAX = 9_000_000

/** The amounts that each metric allows. */
export const AMOUNT_RULES = {
  anyOf: [
    {
      properties: {
        metric: { enum: LIMIT_METRICS.filter((metric) => metric !== 'cost_usd') },
        amount: { type: 'integer', maximum: Number.MAX_SAFE_INTEGER },
      },
    },
    {
      properties: {
        metric: { const: 'cost_usd' },
        amount: { anyOf: [{ const: 0 }, { minimum: 1e-9, exclusiveMaximum: USD_EXCLUSIVE_MAX }] },
      },
    },
  ],
}

/** The required fields of each scope; a limit has no other of these fields, except for the model. */
const NEEDED: Readonly<Record<LimitScope, Readonly<Record<string, object>>>> = {
  entity: { entity: NamedText },
  entity_type: { entity_type: { type: 'string', pattern: '^[^:/_]*[^:/_\\s][^:/_]*$' } },
  project: {},
  key: { key: NamedText },
  model: { model: NamedText },
}
const ABSENT = { type: 'null' }

export const CREATE_LIMIT_RULES = {
  allOf: [
    AMOUNT_RULES,
    {
      anyOf: LIMIT_SCOPES.map((scope) => ({
        properties: {
          ...{ scope: { const: scope }, entity: ABSENT, entity_type: ABSENT, key: ABSENT },
          model: { anyOf: [ABSENT, NamedText] },
          ...NEEDED[scope],
        },
        required: Object.keys(NEEDED[scope]),
      })),
    },
  ],
}

/** The limit of a key that is created together with it. */
export const CreateKeyLimit = Type.Object(
  { ...TERMS, model: maybe(Name, 'Counts lines of this model alone.') },
  { title: 'CreateKeyLimit', additionalProperties: false },
)
export type CreateKeyLimit = Static<typeof CreateKeyLimit>

/** The changes to a limit, except its metric and scope, which are fixed. An empty body changes nothing. */
export const UpdateLimit = orNull(
  object(
    'UpdateLimit',
    {
      amount: Type.Optional(Amount),
      action: Type.Optional(Action),
      description: maybe(Description),
      notify_at: maybe(NotifyAt),
    },
    { amount: 50 },
  ),
)
export type UpdateLimit = NonNullable<Static<typeof UpdateLimit>>

export const DeletedLimit = deletedOf('limit', 'DeletedLimit')
