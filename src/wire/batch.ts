// Describes a batch as the API shows it, and the request that creates one.
import { type Static, Type } from 'typebox'
import { BATCH_STATUSES, REASK_MODES, REASKS_MAX } from '../domain/batch.ts'
import { DURATION_UNITS } from '../domain/days.ts'
import {
  type BatchEndpoint as BatchEndpointName,
  DEFAULT_ENDPOINT,
  ENDPOINT_PATHS,
  type EndpointPath,
  MIXED,
} from '../domain/endpoint.ts'
import { recordOf } from '../domain/json-record.ts'
import { COMPLETION_PARTS, PROMPT_PARTS } from '../domain/money.ts'
import { STORABLE_PATTERN } from '../domain/text.ts'
import {
  METADATA_KEY_CHARACTERS_MAX,
  METADATA_PAIRS_MAX,
  METADATA_VALUE_CHARACTERS_MAX,
} from '../jsonl/line-scan.ts'
import { LINE_FILTER } from './batch-line.ts'
import { BatchWebhook, CreateBatchWebhook, DELIVERY_STATUSES, WEBHOOK_RULES } from './event.ts'
import { ExpiresAfter } from './file.ts'
import { LimitObject } from './limit.ts'
import { WaitingReason } from './request-record.ts'
import {
  amount,
  arrayOf,
  between,
  count,
  flag,
  maybe,
  maybeText,
  object,
  oneOf,
  orNull,
  RetentionShape,
  text,
  timestamp,
} from './shape.ts'

// Metadata of a batch or a line: a few short strings.

/** The schema of metadata, written out because typebox's Record bounds neither the number of keys nor their length. */
export const Metadata = Type.Unsafe<Record<string, string>>({
  type: 'object',
  title: 'Metadata',
  description:
    'Up to 16 pairs of strings. `entity` is the entity to attribute usage to, `conversation` groups the lines of one thread, `tags` is free text.',
  additionalProperties: {
    type: 'string',
    maxLength: METADATA_VALUE_CHARACTERS_MAX,
    pattern: STORABLE_PATTERN,
  },
  propertyNames: { maxLength: METADATA_KEY_CHARACTERS_MAX, pattern: STORABLE_PATTERN },
  maxProperties: METADATA_PAIRS_MAX,
  examples: [{ entity: 'user:42', tags: 'nightly', conversation: 'thread-7' }],
})

export type Metadata = Static<typeof Metadata>

/** The longest template of a prompt in characters. */
const TEMPLATE_CHARACTERS_MAX = 64 * 1024

/** The endpoint of a batch: a built-in one, or one that the configuration declares. */
const BatchEndpoint = Type.Unsafe<BatchEndpointName>({
  type: 'string',
  examples: [...ENDPOINT_PATHS, MIXED],
})
const FileIdOrNull = orNull(Type.String())
const Count = count()

/** A problem of a line in a batch's input file. */
export const BatchProblem = object('BatchProblem', {
  code: Type.String(),
  message: Type.String(),
  param: orNull(Type.String()),
  line: orNull(Type.Integer({ minimum: 1 }), 'Its number in the input.'),
})

export type BatchProblem = Static<typeof BatchProblem>

const BatchErrors = Type.Object({ object: Type.Literal('list'), data: Type.Array(BatchProblem) })

const BatchUsage = object('BatchUsage', {
  input_tokens: Count,
  input_tokens_details: Type.Object(recordOf(PROMPT_PARTS, () => Count)),
  output_tokens: Count,
  output_tokens_details: Type.Object(recordOf(COMPLETION_PARTS, () => Count)),
  total_tokens: Count,
})

export const ReaskShape = Type.Object(
  {
    max: between(1, REASKS_MAX, 'How often at most.'),
    mode: oneOf(
      REASK_MODES,
      '`repeat`: the same request with another `seed`. `repair`: with the answer, and what is wrong with it, as messages.',
    ),
  },
  {
    title: 'Reask',
    additionalProperties: false,
    description:
      'Answers that miss the JSON Schema of `response_format`, or are cut by length, are asked for again. Each attempt is billed, and the last answer stands.',
  },
)

/** A time in Unix seconds, left out until it is known; null for clients of OpenAI's API. */
function moment(description: string) {
  return maybe(timestamp(description))
}

const Progress = object('BatchProgress', {
  lines_per_s: orNull(amount(), 'Of late; null before there is anything to go by.'),
  estimated_completion: orNull(count(), 'Unix seconds, at that rate; null when it cannot be said.'),
  at_risk: flag(
    'Whether it may not be done by `expires_at`, or cannot run now; its lines then go before those of others.',
  ),
})

export const BatchObject = object(
  'Batch',
  {
    id: text('Begins with `batch_`.'),
    object: Type.Literal('batch'),
    name: text('`metadata.name`, else the name of its input file.'),
    endpoint: BatchEndpoint,
    status: oneOf(BATCH_STATUSES),
    input_file_id: Type.String(),
    output_file_id: FileIdOrNull,
    error_file_id: FileIdOrNull,
    input_url: maybeText('Where its input file came from.'),
    output_url: maybeText('Where its results are written to when it has ended.'),
    output_url_status: Type.Optional(oneOf(DELIVERY_STATUSES, 'Whether they have been; with `output_url`.')),
    output_url_error: maybe(Type.String(), 'Why they are not there yet, or will not be.'),
    kind: Type.Optional(
      Type.Literal('requests', {
        description: 'The batch gathers requests that come one at a time; absent for others.',
      }),
    ),
    errors: maybe(
      BatchErrors,
      'Of a batch that failed: what is wrong with its first lines; its error file names each. Of one that expired: what its lines waited for.',
    ),
    model: maybe(Type.String(), 'What its lines name, where they name one model.'),
    completion_window: Type.String(),
    request_counts: Type.Object({ total: Count, completed: Count, failed: Count }),
    not_run: count(
      'Of the failed lines, those that were never sent: the batch ended before, or a limit was reached.',
    ),
    usage: maybe(BatchUsage, 'The tokens of the lines that have a result.'),
    cost_usd: amount('What the batch costs; lines with a result only.'),
    cache_saved_usd: Type.Optional(
      amount(
        'What cached prompt tokens would have cost more at the full price. Absent where they saved nothing.',
      ),
    ),
    region: Type.String(),
    created: timestamp('when it was accepted.'),
    created_at: timestamp('the same as `created`, for OpenAI clients.'),
    in_progress_at: moment('when its first line was sent; for OpenAI clients, when it was validated.'),
    finalizing_at: moment('for OpenAI clients alone: the same as `completed_at`.'),
    completed_at: moment('when it completed.'),
    failed_at: moment('when it failed.'),
    expired_at: moment('when it expired.'),
    cancelling_at: moment('when its cancel was accepted.'),
    cancelled_at: moment('when it was cancelled.'),
    expires_at: timestamp('nothing runs past it.'),
    start_after: moment('nothing is sent before it.'),
    paused_at: moment('since when it is paused.'),
    metadata: Metadata,
    dedupe: Type.Optional(
      Type.Union([Type.Literal(true), Type.Literal('force')], {
        description: 'Identical requests are sent once; absent where they are not.',
      }),
    ),
    dedupe_counts: Type.Optional(
      Type.Object(
        {
          shared: count('Lines that share the answer of an identical line.'),
          saved_usd: amount('What answers of their own would have cost, at least.'),
          unshared: count(
            'Lines that ask what an earlier line asks and are sent all the same, since `temperature` is not 0 and no `seed` is set: `dedupe: "force"` shares them too. Known once the batch is planned.',
          ),
        },
        { title: 'DedupeCounts', description: 'With `dedupe`: what it has done.' },
      ),
    ),
    reask: Type.Optional(ReaskShape),
    reask_counts: Type.Optional(
      Type.Object(
        {
          asked: count('Lines whose answers were asked for again.'),
          missed: count('Finished lines whose answers miss their schema, or are cut off, all the same.'),
        },
        { title: 'ReaskCounts', description: 'With `reask`: what it has done.' },
      ),
    ),
    order: Type.Optional(
      Type.Literal('file', { description: 'Its lines are sent in the order of the file.' }),
    ),
    retention: Type.Optional(RetentionShape),
    progress: Type.Optional(Progress),
    webhook: Type.Optional(BatchWebhook),
    results: Type.Optional(
      arrayOf(
        Type.Unsafe<object>({ type: 'object' }),
        'In the answer to a call that waited for the end of its batch: its result lines, in the order of the input. Left out where they are more than 1 MiB, or the key may not read them.',
      ),
    ),
    waiting_reason: maybe(
      WaitingReason,
      'Why no line of it has ended lately; null when it waits for nothing. Not in finished batches.',
    ),
  },
  {
    id: 'batch_01k0a6w3f2n8s5v7y1c4e6g9hj',
    object: 'batch',
    name: 'requests.jsonl',
    endpoint: DEFAULT_ENDPOINT,
    status: 'in_progress',
    input_file_id: 'file_01k0a6v1h8e5q6t2m3x4z9b7cd',
    output_file_id: null,
    error_file_id: null,
    completion_window: '24h',
    request_counts: { total: 12, completed: 4, failed: 0 },
    not_run: 0,
    cost_usd: 0.00042,
    region: 'local',
    created: 1767225660,
    created_at: 1767225660,
    in_progress_at: 1767225661,
    expires_at: 1767312060,
    metadata: { entity: 'user:42' },
    progress: { lines_per_s: 1.5, estimated_completion: 1767225666, at_risk: false },
    waiting_reason: null,
  },
)

export type BatchObject = Static<typeof BatchObject>

const BatchRequest = object('BatchRequest', {
  custom_id: maybeText('`request-1` and so on, by its place, if it is left out.'),
  method: Type.Optional(Type.Literal('POST')),
  url: Type.Optional(
    Type.Unsafe<EndpointPath>({ ...BatchEndpoint, description: 'The `endpoint`, if it is left out.' }),
  ),
  body: Type.Unsafe<object>({ type: 'object', description: 'It is sent as the bytes that came.' }),
  metadata: maybe(Metadata),
})

export const CreateRequest = object(
  'CreateRequest',
  {
    endpoint: BatchEndpoint,
    body: Type.Unsafe<object>({ type: 'object', description: 'It is sent as the bytes that came.' }),
    custom_id: maybe(Type.String(), 'The request ID of the call, if it is left out.'),
    completion_window: maybe(Type.String(), 'A window of your plan; the longest, if it is left out.'),
    metadata: maybe(Metadata),
    webhook: maybe(CreateBatchWebhook, 'Where its end is posted to, as an event `request.*`.'),
  },
  {
    endpoint: DEFAULT_ENDPOINT,
    body: { model: 'llama-3.3-70b', messages: [{ role: 'user', content: 'Hello' }] },
    metadata: { entity: 'user:42' },
  },
)

const WebhookOfBatch = maybe(
  CreateBatchWebhook,
  'Is sent the events of this batch, beside the webhooks of the project. The key needs `webhooks:write`.',
)

export const BatchTable = Type.Object(
  {
    model: text('Which model answers.'),
    prompt: Type.String({
      minLength: 1,
      maxLength: TEMPLATE_CHARACTERS_MAX,
      description: 'What to ask about each row: `{{column}}` is its cell (Mustache).',
    }),
    system: maybe(Type.String({ maxLength: TEMPLATE_CHARACTERS_MAX }), 'The system message, written alike.'),
    schema: maybe(
      Type.Record(Type.String(), Type.Unknown()),
      'The JSON Schema of the answers, asked for as `response_format`: of an object with `properties`.',
    ),
    id_column: maybeText(
      'The column whose cells become `custom_id`s; without it they are `row-1` and so on.',
    ),
    images: maybe(
      Type.Array(Type.String(), { maxItems: 16 }),
      'Columns with the address of an image (`https:` or `data:`), which is sent after the prompt.',
    ),
    parameters: maybe(
      Type.Record(Type.String(), Type.Unknown()),
      'Other fields of each request, such as `max_tokens`.',
    ),
    skip_empty: maybe(
      Type.Boolean(),
      'Whether rows without anything in the columns of the prompt are left out.',
    ),
    delimiter: maybe(
      Type.String({ minLength: 1, maxLength: 1, pattern: '[^"\\r\\n]' }),
      'Of a CSV file; without it, the one that its first line has most of.',
    ),
    limit: maybe(Type.Integer({ minimum: 1 }), 'Only so many rows, from the first.'),
  },
  {
    title: 'BatchTable',
    additionalProperties: false,
    examples: [
      { model: 'sim-1', prompt: 'Is this review positive? {{text}}', parameters: { max_tokens: 5 } },
    ],
  },
)

export type BatchTable = Static<typeof BatchTable>

export const CreateBatch = object(
  'CreateBatch',
  {
    input_file_id: maybeText(
      'A file of yours that is `processed`, or will be in a few seconds: the call waits for it.',
    ),
    requests: Type.Optional(
      arrayOf(
        BatchRequest,
        'Instead of `input_file_id`: 1 to 10,000 lines, which become a file. The whole call has 32 MiB at most.',
      ),
    ),
    table: Type.Optional(BatchTable),
    input_url: maybeText(
      'Instead of `input_file_id`: a file in a bucket, `s3://bucket/path/input.jsonl`, under a prefix that the operator lets the project read.',
    ),
    output_url: maybeText(
      'A folder in a bucket, `s3://bucket/path/`, under a prefix that the operator lets the project write: when the batch has ended, its results are written to `ID/output.jsonl` and `ID/errors.jsonl` there.',
    ),
    endpoint: Type.Unsafe<BatchEndpointName>({
      ...BatchEndpoint,
      description:
        'The endpoint of its lines; `/v1/chat/completions` for most. `mixed`: each line goes to its own `url`, without `dedupe` and `reask`.',
    }),
    completion_window: text('A window of your plan, such as `24h`; `GET /v1/quotas` names them.'),
    metadata: maybe(Metadata),
    start_after: maybe(
      Type.Integer({ minimum: 0, maximum: 10 ** 11 }),
      'Unix seconds: no line is sent before. The completion window counts from the creation all the same.',
    ),
    dedupe: Type.Optional(
      Type.Union([Type.Boolean(), Type.Literal('force'), Type.Null()], {
        description:
          '`true`: identical requests are sent once, where `temperature` is 0, a `seed` is given or nothing is generated. `force`: all identical requests. The other lines share the answer and cost nothing.',
      }),
    ),
    reask: maybe(ReaskShape),
    order: maybe(
      Type.Literal('file'),
      '`file`: lines are sent in the order of the file, as far as servers have room. Without it, lines that begin alike are sent one after the other, so that prefix caches of servers hit; results are in the order of the file in any case.',
    ),
    retention: maybe(
      RetentionShape,
      'Destroys the results once they were fetched, and the input with the end of the batch. The shortest times of plan, key and batch hold.',
    ),
    webhook: WebhookOfBatch,
    wait: maybe(
      Type.String(),
      'How long the answer waits for the end of the batch: a duration up to `60s`, such as `30s`. It comes within 45 s in any case.',
    ),
    output_expires_after: maybe(
      ExpiresAfter,
      'Deletes the result files so long after their creation, if that is sooner.',
    ),
  },
  {
    input_file_id: 'file_01k0a6v1h8e5q6t2m3x4z9b7cd',
    endpoint: DEFAULT_ENDPOINT,
    completion_window: '24h',
    metadata: { entity: 'user:42' },
  },
)

const WINDOW_RULES = { completion_window: { pattern: `^0*[1-9][0-9]{0,6}(${DURATION_UNITS})$` } }

/** The patterns of URLs of objects and folders in buckets, as domain/bucket-url.ts reads them. */
const SEGMENT = '(?!\\.{1,2}(?:/|$))[^%?#\\\\/\\x00-\\x1f\\x7f-\\x9f]+'
const FOLDERS = `^s3://[A-Za-z0-9_.-]+/(?:${SEGMENT}/)*`
const INPUT_URL_RULE = { pattern: `${FOLDERS}${SEGMENT}$` }
const OUTPUT_URL_RULE = { pattern: `${FOLDERS}(?:${SEGMENT})?$` }

export const RETRY_BATCH_RULES = {
  properties: { ...WINDOW_RULES, output_url: OUTPUT_URL_RULE, webhook: WEBHOOK_RULES },
}

/** The pattern of durations in a batch's retention. */
const KEPT_RULE = { pattern: `^[0-9]{1,6}(${DURATION_UNITS})$` }
export const RETENTION_RULES = { retention: { properties: { results: KEPT_RULE, grace: KEPT_RULE } } }

export const CREATE_BATCH_RULES = {
  properties: {
    ...WINDOW_RULES,
    ...RETENTION_RULES,
    metadata: { properties: { entity: { pattern: '\\S' } } },
    requests: { minItems: 1, maxItems: 10_000 },
    input_url: INPUT_URL_RULE,
    output_url: OUTPUT_URL_RULE,
    webhook: WEBHOOK_RULES,
    wait: {
      pattern: '^0*([0-9]|[1-5][0-9]|60)s$|^0*([0-9]{1,4}|[1-5][0-9]{4}|60000)ms$|^0*[01]m$|^0+[hd]$',
    },
  },
  allOf: [
    { oneOf: [{ required: ['input_file_id'] }, { required: ['requests'] }, { required: ['input_url'] }] },
  ],
}

export type CreateBatch = Static<typeof CreateBatch>

// The estimate of the cost of a batch that does not exist yet.

const Usd = amount('In USD, at most.')
const InMetric = amount('In the limit’s metric: USD or tokens.')

const projected = {
  lines: Count,
  input_tokens: count('Estimated.'),
  output_tokens_max: count('If every line used all that `max_tokens`, or its model, allows.'),
  cost_usd: Usd,
}

export const BatchEstimate = object(
  'BatchEstimate',
  {
    object: Type.Literal('batch.estimate'),
    input_file_id: Type.String(),
    accepted: flag('Whether the limits would let the batch in now.'),
    estimated_completion: maybe(
      count(),
      'Unix seconds: about when it would be done, behind the lines of open batches and at the speed of the servers of its models now, or else of the last batches of the project; null when it cannot be said.',
    ),
    ...projected,
    prompt_cache: Type.Optional(
      Type.Object(
        {
          shared: amount('In the order in which lines are sent, at most.'),
          as_written: amount('In the order of the file.'),
        },
        {
          title: 'PromptCache',
          description:
            'Which share of the prompts a server with a prefix cache can read from it, as lines begin alike: from 0 to 1. Absent where that is not known.',
        },
      ),
    ),
    groups: Type.Array(
      Type.Object({
        model: orNull(Type.String()),
        entity: orNull(Type.String()),
        priced: flag('False: the model has no price, so these lines cost nothing.'),
        ...projected,
        bytes_per_token: amount('Of text, as projected: learned from what the servers of the model report.'),
      }),
    ),
    unpriced_models: arrayOf(Type.String(), 'Models without a price: their lines cost 0.'),
    unknown_models: Type.Optional(
      arrayOf(Type.String(), 'Names that no model has: their lines fail, and cost nothing.'),
    ),
    limits: arrayOf(
      Type.Object({
        limit: LimitObject,
        entity: orNull(Type.String(), 'Whose spending it is; null: the project’s.'),
        spent: InMetric,
        open: amount('What open batches may still use.'),
        needed: amount('What this batch may use.'),
        exceeds: flag('Whether all that together passes the cap.'),
        resets_at: Type.Integer({ description: 'Unix seconds; the end of the window.' }),
      }),
      'The limits that count lines of this batch.',
    ),
  },
  {
    object: 'batch.estimate',
    input_file_id: 'file_01k0a6v1h8e5q6t2m3x4z9b7cd',
    accepted: true,
    estimated_completion: 1767225666,
    lines: 12,
    input_tokens: 480,
    output_tokens_max: 6144,
    cost_usd: 0.0025056,
    prompt_cache: { shared: 0.62, as_written: 0.03 },
    groups: [
      {
        model: 'sim-1',
        entity: 'user:42',
        priced: true,
        lines: 12,
        input_tokens: 480,
        output_tokens_max: 6144,
        cost_usd: 0.0025056,
        bytes_per_token: 4,
      },
    ],
    unpriced_models: [],
    unknown_models: [],
    limits: [],
  },
)
export type BatchEstimate = Static<typeof BatchEstimate>

// The request that writes the results of a batch to a bucket.

export const ExportBatch = object('ExportBatch', {
  output_url: maybeText(
    'A folder in a bucket, as in the call that creates a batch. The batch has it from then on; without it, that of the batch.',
  ),
})

export const EXPORT_BATCH_RULES = { properties: { output_url: OUTPUT_URL_RULE } }

// The request that runs the failed lines of a batch again.

export const RetryBatch = object('RetryBatch', {
  codes: Type.Optional(
    Type.Array(Type.String(), {
      minItems: 1,
      maxItems: 50,
      description: 'Only lines that failed with one of these error codes.',
    }),
  ),
  ...LINE_FILTER,
  line: Type.Optional(
    Type.Integer({ minimum: 1, description: 'Only the line with this number in the input file.' }),
  ),
  completion_window: maybe(Type.String(), 'The window of the batch, if it is left out.'),
  output_url: maybe(
    Type.String(),
    'A folder in a bucket, as in the call that creates a batch; left out, that of the batch, and null for none.',
  ),
  webhook: WebhookOfBatch,
})

export type RetryBatch = Static<typeof RetryBatch>
/** The choice of failed lines; all of them where nothing is given. */
export type FailedLines = Omit<RetryBatch, 'completion_window' | 'output_url' | 'webhook'>
