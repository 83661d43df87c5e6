// The quotas of a project and what it has of each, as the API shows them.
import { type Static, Type } from 'typebox'

const OrNull = Type.Union([Type.Integer({ minimum: 0 }), Type.Null()])

const Quota = Type.Object(
  {
    limit: Type.Union(OrNull.anyOf, { description: 'Null: there is none.' }),
    used: Type.Union(OrNull.anyOf, { description: 'Null where each call is looked at alone.' }),
  },
  { title: 'Quota' },
)

export const QuotasObject = Type.Object(
  {
    object: Type.Literal('quotas'),
    plan: Type.String(),
    quotas: Type.Object({
      stored_bytes: Quota,
      open_batches: Quota,
      queued_lines: Quota,
      limits: Quota,
      webhooks: Quota,
      entities_per_batch: Quota,
      uploads: Quota,
      downloads: Quota,
      streams: Quota,
      keys: Quota,
    }),
  },
  {
    title: 'Quotas',
    examples: [
      {
        object: 'quotas',
        plan: 'payg',
        quotas: {
          stored_bytes: { limit: 1099511627776, used: 4280 },
          open_batches: { limit: 1000, used: 1 },
          queued_lines: { limit: 100000000, used: 8 },
          limits: { limit: 10000, used: 2 },
          webhooks: { limit: 20, used: 0 },
          entities_per_batch: { limit: 5000, used: null },
          uploads: { limit: 16, used: 0 },
          downloads: { limit: 64, used: 0 },
          streams: { limit: 100, used: 1 },
          keys: { limit: 100, used: 3 },
        },
      },
    ],
  },
)
export type QuotasObject = Static<typeof QuotasObject>
