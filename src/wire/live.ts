// What has changed, pushed: each event of GET /v1/live is one of these; without an event stream it is one snapshot.
import { type Static, Type } from 'typebox'
import { BatchObject } from './batch.ts'
import { timestamp } from './timestamp.ts'

export const LiveUpdate = Type.Object(
  {
    object: Type.Literal('live'),
    at: timestamp('when it was read.'),
    batches: Type.Array(BatchObject, {
      description:
        'The first time the unfinished batches, newest first; then those that have changed, ended or come since.',
    }),
  },
  { title: 'LiveUpdate' },
)

export type LiveUpdate = Static<typeof LiveUpdate>
