// Projections: the most tokens that a line may use, and the sums in a file's index, from which a batch is projected
// without reading the file. Each choice of `n` may use the whole output limit; the input counts once.
import { atMost, sumOf } from '../domain/exact-count.ts'
import type { Model } from '../domain/model.ts'
import { costNanos } from '../domain/money.ts'
import { NO_SPEND, type Spend } from '../domain/spend.ts'
import { estimateTokens, projectedTokens } from '../domain/tokens.ts'
import type { InputLine } from './line-scan.ts'
import type { BodyFacts, NumberField } from './line-scan-body.ts'

export interface ProjectedTokens {
  /** Estimated. */
  input_tokens: number
  output_tokens_max: number
}

/** Sums over the lines of one file that share model and entity. */
export interface TokenSums {
  /** Null for lines without a usable `model`: they fail alone and cost nothing. */
  model: string | null
  /** The line's own `metadata.entity`; null where it has none, so that the batch's entity applies. */
  entity: string | null
  lines: number
  /** Estimated, whatever the model. */
  input_tokens: number
  /** Of `input_tokens`, pieces of media; absent in indexes of earlier versions. */
  media_parts?: number
  /** Over the lines that set max_tokens (or max_completion_tokens), times their `n`. */
  output_tokens_max_given: number
  /** Over the lines that set neither: the sum of their `n`, to be multiplied by the model's max_output_tokens. */
  open_choices: number
}

/** What a picture or a piece of sound is taken for: servers differ, most count some hundreds to two thousand. */
const MEDIA_PART_TOKENS = 1000

/** A line cannot claim more than this; a larger number would be refused by the model anyway. */
const TOKENS_MAX = 2 ** 31

/** What one line may use at most. A model without `max_output_tokens` adds nothing where a line sets no limit. */
export function projectTokens(line: InputLine, model: Model): ProjectedTokens {
  const { body } = line
  const output = outputTokensGiven(body) ?? model.max_output_tokens ?? 0
  return {
    input_tokens: projectedInput(estimateInput(body), body.messages.media_parts, model),
    output_tokens_max: atMost(output * choicesOf(body)),
  }
}

export function emptySums(model: string | null, entity: string | null): TokenSums {
  return {
    model,
    entity,
    lines: 0,
    input_tokens: 0,
    media_parts: 0,
    output_tokens_max_given: 0,
    open_choices: 0,
  }
}

/** Adds one line to the sums of its group. */
export function addLine(sums: TokenSums, body: BodyFacts): void {
  const output = outputTokensGiven(body)
  sums.lines++
  sums.media_parts = (sums.media_parts ?? 0) + body.messages.media_parts
  sums.input_tokens = atMost(sums.input_tokens + estimateInput(body))
  if (output === null) sums.open_choices = atMost(sums.open_choices + choicesOf(body))
  else sums.output_tokens_max_given = atMost(sums.output_tokens_max_given + output * choicesOf(body))
}

/** What the lines of one group may use at most on `model`. */
export function projectSums(sums: TokenSums, model: Model): ProjectedTokens {
  const open = sums.open_choices * (model.max_output_tokens ?? 0)
  return {
    // Each line is rounded up on its own.
    input_tokens: projectedInput(sums.input_tokens, sums.media_parts ?? 0, model, sums.lines - 1),
    output_tokens_max: atMost(sums.output_tokens_max_given + open),
  }
}

/** The projected spend of such tokens; nothing where the model is unknown, since the line then fails alone. */
export function projectedSpend(
  { input_tokens, output_tokens_max }: ProjectedTokens,
  model: Model | undefined,
): Spend {
  if (!model) return NO_SPEND
  return {
    cost_nanos: costNanos(input_tokens, output_tokens_max, model.price),
    tokens: sumOf(input_tokens, output_tokens_max),
  }
}

/** Messages, tools and schema become the prompt; media count by the piece, not by their base64. */
function estimateInput(body: BodyFacts): number {
  return estimateTokens(promptBytes(body)) + body.messages.media_parts * MEDIA_PART_TOKENS
}

/** Of what becomes the prompt, as written, without media. */
export function promptBytes({ messages, tools, response_format }: BodyFacts): number {
  return (
    messages.end -
    messages.start -
    messages.media_bytes +
    (tools.end - tools.start) +
    (response_format.end - response_format.start)
  )
}

/** The estimate for any model, by what is known of this one. */
function projectedInput(estimated: number, media_parts: number, { seen }: Model, rounding = 0): number {
  const media = media_parts * MEDIA_PART_TOKENS
  const text = Math.max(0, estimated - media)
  const projected = projectedTokens(text, seen)
  return atMost((projected === text ? text : projected + rounding) + media)
}

/** Servers differ in which of the two limits they obey when both are given: projected is the larger. */
function outputTokensGiven(body: BodyFacts): number | null {
  const given = Math.max(count(body.max_tokens), count(body.max_completion_tokens))
  return given === 0 ? null : Math.min(given, TOKENS_MAX)
}

/** How many answers the line asks for. */
export function choicesOf(body: Pick<BodyFacts, 'n'>): number {
  return atMost(Math.max(count(body.n), 1))
}

/** 0 for what is no positive integer: such a line fails alone. */
function count(field: NumberField): number {
  return field !== null && Number.isInteger(field) && field > 0 ? field : 0
}
