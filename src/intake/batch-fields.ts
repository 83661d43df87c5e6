// The fields of the call that creates a batch, one row for each field that the batch keeps: its columns, its form in
// the API, and its value for a retry. A field without a row does not compile.
import type { Insertable } from 'kysely'
import { dedupeMode, readReask, shownDedupe } from '../domain/batch.ts'
import { secondsOrNull } from '../domain/clock.ts'
import { DEFAULT_ENDPOINT, MIXED } from '../domain/endpoint.ts'
import { trimmedEntity } from '../domain/entity.ts'
import { invalidParam } from '../domain/errors.ts'
import { usd } from '../domain/money.ts'
import { parseRetention, shownRetention } from '../domain/retention.ts'
import { METADATA_PAIRS_MAX, METADATA_VALUE_CHARACTERS_MAX } from '../jsonl/line-scan.ts'
import type { BatchRow, Schema } from '../store/schema.ts'
import type { BatchObject, CreateBatch, Metadata } from '../wire/batch.ts'

export type BatchColumns = Partial<Insertable<Schema['batches']>>

interface BatchField<Name extends string> {
  /** The columns of the field's value. Throws invalid_request. */
  kept: (request: CreateBatch) => BatchColumns
  /** The field in the API's batch object, with `none` for a time that is not set; null: absent from that object. */
  shown:
    | ((batch: BatchRow, none: null | undefined) => Partial<BatchObject>)
    | (Name extends keyof BatchObject ? never : null)
  /** The field's value in a retry of the batch; null: a retry does not copy the field. */
  retried: ((batch: BatchRow) => Partial<CreateBatch>) | null
}

const reaskOf = ({ reask }: BatchRow) => ({ reask: readReask(reask) ?? undefined })

const orderOf = ({ line_order }: BatchRow) => ({ order: line_order ?? undefined })

const retentionOf = ({ retention }: BatchRow) => ({ retention: shownRetention(retention) })

const BATCH_FIELDS: { readonly [Name in keyof Required<CreateBatch>]: BatchField<Name> | null } = {
  // These fields determine the input, the window and the answer of the call, not columns.
  ...{ input_file_id: null, requests: null, table: null, endpoint: null, completion_window: null },
  ...{ webhook: null, wait: null },
  input_url: {
    kept: ({ input_url = null }) => ({ input_url }),
    shown: ({ input_url }) => ({ input_url: input_url ?? undefined }),
    retried: null,
  },
  output_url: {
    kept: ({ output_url = null }) => ({
      output_url,
      output_url_status: output_url === null ? null : 'pending',
    }),
    shown: ({ output_url, output_url_status, output_url_error }) => ({
      output_url: output_url ?? undefined,
      ...(output_url_status !== null && { output_url_status, output_url_error }),
    }),
    retried: ({ output_url }) => ({ output_url: output_url ?? undefined }),
  },
  start_after: {
    kept: ({ start_after }) => ({ start_after: start_after == null ? null : start_after * 1000 }),
    shown: ({ start_after }, none) => ({ start_after: secondsOrNull(start_after) ?? none }),
    retried: null,
  },
  metadata: {
    kept({ metadata }) {
      if (metadata?.entity !== undefined && trimmedEntity(metadata.entity) === null)
        throw invalidParam(
          'metadata.entity',
          '`metadata.entity` is blank. Name an entity, or leave the key out.',
        )
      return { metadata: metadata ? JSON.stringify(metadata) : null }
    },
    shown: ({ metadata }) => ({ metadata: readMetadata(metadata) }),
    // Full metadata has no room for the ID of the retried batch.
    retried({ id, metadata }) {
      const old = readMetadata(metadata)
      if (old.name !== undefined) old.name = retryName(old.name)
      const isFull = Object.keys(old).length >= METADATA_PAIRS_MAX && old.retry_of === undefined
      return { metadata: isFull ? old : { ...old, retry_of: id } }
    },
  },
  dedupe: {
    kept({ dedupe, endpoint }) {
      if (endpoint === MIXED && dedupe)
        throw invalidParam('dedupe', '`dedupe` is for batches of one endpoint; leave it out.')
      return { dedupe: dedupeMode(dedupe) }
    },
    shown: ({ dedupe, shared_lines, saved_nanos, unshared_lines }) =>
      dedupe === null
        ? {}
        : {
            dedupe: shownDedupe(dedupe),
            dedupe_counts: {
              ...{ shared: shared_lines, saved_usd: usd(saved_nanos), unshared: unshared_lines },
            },
          },
    retried: ({ dedupe }) => ({ dedupe: dedupe && shownDedupe(dedupe) }),
  },
  reask: {
    kept({ reask, endpoint }) {
      if (reask && endpoint !== DEFAULT_ENDPOINT)
        throw invalidParam('reask', `\`reask\` is for batches of ${DEFAULT_ENDPOINT}; leave it out.`)
      return { reask: reask ? JSON.stringify(reask) : null }
    },
    shown: (batch) => ({
      ...reaskOf(batch),
      reask_counts:
        batch.reask === null ? undefined : { asked: batch.reasked_lines, missed: batch.faulty_lines },
    }),
    retried: reaskOf,
  },
  order: {
    kept: ({ order = null }) => ({ line_order: order }),
    shown: orderOf,
    retried: orderOf,
  },
  retention: {
    kept: ({ retention }) => ({ retention: retention ? JSON.stringify(parseRetention(retention)) : null }),
    shown: retentionOf,
    retried: retentionOf,
  },
  output_expires_after: {
    kept: ({ output_expires_after: after }) => ({
      output_expires_after_ms: after ? after.seconds * 1000 : null,
    }),
    shown: null,
    retried: ({ output_expires_after_ms: ms }) => ({
      output_expires_after: ms === null ? undefined : { anchor: 'created_at', seconds: ms / 1000 },
    }),
  },
}

const FIELDS = Object.values(BATCH_FIELDS).filter((field) => field !== null)

/** The names of the fields that a retry copies from its batch. */
export const RETRIED_FIELDS = Object.entries(BATCH_FIELDS).flatMap(([name, field]) =>
  field?.retried ? [name] : [],
)

/** The columns of all fields of a request. Throws invalid_request. */
export function keptFields(request: CreateBatch): BatchColumns {
  return Object.assign({}, ...FIELDS.map(({ kept }) => kept(request)))
}

type ShownFields = Partial<BatchObject> & Pick<BatchObject, 'metadata'>

export function shownFields(batch: BatchRow, none: null | undefined): ShownFields {
  return Object.assign({}, ...FIELDS.map(({ shown }) => shown?.(batch, none)))
}

export function retriedFields(batch: BatchRow): Partial<CreateBatch> {
  return Object.assign({}, ...FIELDS.map(({ retried }) => retried?.(batch)))
}

/** Reads stored metadata; `json` is null where none was given. */
export function readMetadata(json: string | null): Metadata {
  return JSON.parse(json ?? '{}')
}

/** `Name (retry)`, `Name (retry 2)` and so on, clipped to the limit of a metadata value. */
function retryName(name: string): string {
  const { 1: first = name, 2: retry, 3: number = '1' } = /^(.*) \((retry)(?: (\d+))?\)$/s.exec(name) ?? []
  const suffix = retry ? ` (retry ${Number(number) + 1})` : ' (retry)'
  return first.slice(0, METADATA_VALUE_CHARACTERS_MAX - suffix.length) + suffix
}
