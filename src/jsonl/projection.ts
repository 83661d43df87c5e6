// Projections: the most tokens that a line may use, and the sums in a file's index, from which a batch is projected
// without reading the file. Each choice of `n` may use the whole output limit; the input counts once.

import type { ChunkSpan, Reask } from '../domain/batch.ts'
import type { FieldRole } from '../domain/endpoint.ts'
import { type Model, projectedPrice } from '../domain/model.ts'
import { atMost, COUNT_MAX, costNanos, NO_SPEND, ratesAt, type Spend, sumOf } from '../domain/money.ts'
import { estimateTokens, projectedTokens, windowOf } from '../domain/tokens.ts'
import { REPAIR_TOKENS_MAX } from './ask-again.ts'
import type { InputLine } from './line-scan.ts'
import type { BodyFacts, Field } from './line-scan-body.ts'
import { IMAGE_TOKENS } from './prompt-bound.ts'
import type { Sharing } from './shared-beginnings.ts'

interface ProjectedTokens {
  /** Estimated input tokens; a whole window for a prompt with unseen parts. */
  input_tokens: number
  output_tokens_max: number
}

/** Sums over the lines of one file that share model and entity. */
export interface TokenSums {
  /** The model of the lines; null without a usable `model`: these lines fail at no cost. */
  model: string | null
  /** The lines' own `metadata.entity`; null without one, so that the batch's entity applies. */
  entity: string | null
  lines: number
  /** Estimated input tokens, before a model's correction. */
  input_tokens: number
  /** The part of `input_tokens` for media and token IDs. */
  exact_tokens: number
  /** The number of further lines whose prompts have unseen parts; 0 if absent. */
  unseen_lines?: number
  /** The sum of max_tokens (or max_completion_tokens) times `n`, over the lines that set a limit. */
  output_tokens_max_given: number
  /** The sum of `n` over the lines without a limit, to be multiplied by the model's max_output_tokens. */
  open_choices: number
  /** The limit of tokens of each line's prompt. */
  reach: number
  /** Separate sums for lines with long prompts, by their `reach`, since prices depend on it. */
  longer?: TokenSums[]
}

/** Tokens of a prompt from which its lines get sums of their own, since prices step up at longer prompts. */
const LONG_TOKENS_MIN = 32_768

/** Tokens assumed for a picture or a piece of sound: servers differ, most count some hundreds to two thousand. */
const MEDIA_PART_TOKENS = 1000

/** The largest token count that a line can claim; the model would reject a larger one anyway. */
const TOKENS_MAX = 2 ** 31

/** The most tokens that one line may use. Without a limit of the line or the model, output tokens count as none. */
export function projectTokens({ body }: InputLine, model: Model, prompt = promptOf(body)): ProjectedTokens {
  const output = outputTokensGiven(body) ?? model.max_output_tokens ?? 0
  return {
    input_tokens: body.unseen ? windowOf(model.context_window) : projectPrompt(prompt, model),
    output_tokens_max: atMost(output * choicesOf(body)),
  }
}

/** Estimated tokens of the part of the prompt that the body contains. */
export function projectPrompt(prompt: Prompt, model: Model): number {
  return projectedInput(estimateInput(prompt), prompt.exact_tokens, model)
}

export function emptySums(model: string | null, entity: string | null): TokenSums {
  return {
    model,
    entity,
    lines: 0,
    input_tokens: 0,
    exact_tokens: 0,
    output_tokens_max_given: 0,
    open_choices: 0,
    reach: 0,
  }
}

/** Adds one line to the sums of its group. */
export function addLine(group: TokenSums, body: BodyFacts): void {
  const output = outputTokensGiven(body)
  const prompt = promptOf(body)
  const reach = promptReach(body, prompt)
  const sums = reach > LONG_TOKENS_MIN ? longerSums(group, reach) : group
  sums.reach = Math.max(sums.reach, reach)
  sums.lines++
  if (body.unseen) sums.unseen_lines = (sums.unseen_lines ?? 0) + 1
  else {
    sums.exact_tokens = atMost(sums.exact_tokens + prompt.exact_tokens)
    sums.input_tokens = atMost(sums.input_tokens + estimateInput(prompt))
  }
  if (output === null) sums.open_choices = atMost(sums.open_choices + choicesOf(body))
  else sums.output_tokens_max_given = atMost(sums.output_tokens_max_given + output * choicesOf(body))
}

/** The sums for the lines whose reach is between the same powers of two. */
function longerSums(group: TokenSums, reach: number): TokenSums {
  group.longer ??= []
  const power = (tokens: number): number => Math.ceil(Math.log2(tokens))
  const found = group.longer.find((one) => power(one.reach) === power(reach))
  if (found !== undefined) return found
  const sums = emptySums(group.model, group.entity)
  group.longer.push(sums)
  return sums
}

/** An upper bound of a prompt's tokens, in any tokenizer and with any chat template (prompt-bound.ts). */
export function promptReach(body: BodyFacts, { bytes, inputs }: Prompt): number {
  const { endpoint, found, messages, span, unseen } = body
  if (unseen) return COUNT_MAX
  let reach = Math.max(bytes, span.end - span.start) + endpoint.templateTokensMax * inputs
  reach += messages.media_parts * IMAGE_TOKENS
  for (const { name, texts, start, end } of found) {
    reach += (texts?.media_parts ?? 0) * IMAGE_TOKENS
    if (WRITTEN_TWICE.includes(name)) reach += end - start
  }
  return atMost(reach)
}

/** Fields that chat templates render anew, so that they count twice. */
const WRITTEN_TWICE: readonly string[] = ['tools', 'response_format', 'text', 'output_config']

/** The sums of a group by the reach of its lines. */
export function partsOf({ longer = [], ...sums }: TokenSums): TokenSums[] {
  return [sums, ...longer]
}

/** The most tokens that the lines of one group may use on `model`. */
export function projectSums(group: TokenSums, model: Model): ProjectedTokens {
  return partsOf(group)
    .map((sums) => projectPart(sums, model))
    .reduce(plusTokens)
}

export function plusTokens(a: ProjectedTokens, b: ProjectedTokens): ProjectedTokens {
  return {
    input_tokens: sumOf(a.input_tokens, b.input_tokens),
    output_tokens_max: sumOf(a.output_tokens_max, b.output_tokens_max),
  }
}

function projectPart(sums: TokenSums, model: Model): ProjectedTokens {
  const { unseen_lines = 0 } = sums
  const open = sums.open_choices * (model.max_output_tokens ?? 0)
  // The number of lines less one, since each line's estimate is rounded up.
  const rounding = Math.max(0, sums.lines - unseen_lines - 1)
  const seen = projectedInput(sums.input_tokens, sums.exact_tokens, model, rounding)
  return {
    input_tokens: atMost(seen + unseen_lines * windowOf(model.context_window)),
    output_tokens_max: atMost(sums.output_tokens_max_given + open),
  }
}

/** The most tokens of all attempts that `reask` allows. The prompt of a repair contains the answer and its faults. */
function withReasks(tokens: ProjectedTokens, reask: Reask | null, lines: number): ProjectedTokens {
  if (reask === null) return tokens
  const { max, mode } = reask
  const { input_tokens, output_tokens_max } = tokens
  const repair = mode === 'repair' ? repairTokensMax(output_tokens_max, lines) : 0
  return {
    input_tokens: atMost(input_tokens + max * (input_tokens + repair)),
    output_tokens_max: atMost(output_tokens_max + max * output_tokens_max),
  }
}

/** Tokens that repairs of `lines` lines may add to their prompts: the answer, and its fault. */
export function repairTokensMax(output_tokens_max: number, lines = 1): number {
  return output_tokens_max + lines * REPAIR_TOKENS_MAX
}

/**
 * The projected tokens and spend of lines, all attempts included; zero for an unknown model, since these lines fail.
 * `reach`: the limit of each prompt's tokens.
 */
export function projectLines(
  once: ProjectedTokens,
  model: Model | undefined,
  reask: Reask | null,
  lines: number,
  reach: number,
): { tokens: ProjectedTokens; spend: Spend } {
  const tokens = withReasks(once, reask, lines)
  if (!model) return { tokens, spend: NO_SPEND }
  const { input_tokens, output_tokens_max } = tokens
  const repair = reask?.mode === 'repair' ? repairTokensMax(once.output_tokens_max, lines) : 0
  const rates = ratesAt(projectedPrice(model), reach + repair)
  return {
    tokens,
    spend: {
      cost_nanos: costNanos(input_tokens, output_tokens_max, rates),
      tokens: sumOf(input_tokens, output_tokens_max),
      requests: lines,
    },
  }
}

/** The parts of a line that become its prompt. */
interface Prompt {
  /** Text, tools and schemas, as written. */
  bytes: number
  /** Tokens that do not depend on bytes: media parts, and token IDs. */
  exact_tokens: number
  /** The number of prompts: one for each of several texts, or for each pair. */
  inputs: number
}

export function promptOf({ endpoint, found, messages }: BodyFacts): Prompt {
  const { inputProjected } = endpoint
  if (inputProjected !== undefined) return { bytes: 0, exact_tokens: inputProjected, inputs: 1 }
  let bytes = -messages.media_bytes
  let exact_tokens = messages.media_parts * MEDIA_PART_TOKENS
  let inputs = 1
  for (const { texts } of found) if (texts !== null) inputs = Math.max(inputs, texts.inputs)
  for (const { role, texts, start, end } of found) {
    if (PROMPT_ROLES.has(role)) bytes += end - start
    if (texts === null) continue
    // The server pairs a query with each document.
    const times = Math.ceil(inputs / Math.max(1, texts.inputs))
    bytes += times * texts.text_bytes
    exact_tokens += times * (texts.token_ids + texts.media_parts * MEDIA_PART_TOKENS)
  }
  return { bytes: atMost(bytes), exact_tokens: atMost(exact_tokens), inputs }
}

const PROMPT_ROLES: ReadonlySet<FieldRole> = new Set([
  ...['messages', 'items', 'prompt', 'reference', 'tools', 'format'],
] as const)

function estimateInput({ bytes, exact_tokens }: Prompt): number {
  return atMost(estimateTokens(bytes) + exact_tokens)
}

/** The estimate with the correction that is known for this model. */
function projectedInput(estimated: number, exact: number, { seen }: Model, rounding = 0): number {
  const text = Math.max(0, estimated - exact)
  const projected = projectedTokens(text, seen)
  return atMost((projected === text ? text : projected + rounding) + exact)
}

/** The output limit, the largest of several since servers differ; 0 for an endpoint that generates nothing. */
function outputTokensGiven({ endpoint, found }: BodyFacts): number | null {
  if (endpoint.usage.output === null) return 0
  // A limit of 0 or less means no limit, and a server may obey that one of several.
  if (found.some(({ role, number }) => role === 'limit' && number !== null && number <= 0)) return null
  const given = largest(found, 'limit')
  return given === 0 ? null : Math.min(given, TOKENS_MAX)
}

/** The smallest of the output limits, which is certain whichever the server obeys; 0 without one. */
export function outputTokensAtLeast({ found }: BodyFacts): number {
  let least = Number.POSITIVE_INFINITY
  for (const { role, number } of found)
    if (role === 'limit' && number !== null && number > 0) least = Math.min(least, number)
  return Number.isFinite(least) ? least : 0
}

/** The number of answers that are generated for the line. */
export function choicesOf(body: BodyFacts): number {
  if (body.endpoint.usage.output === null) return 0
  const each = Math.max(largest(body.found, 'choices'), 1)
  if (!body.endpoint.choicesPerText) return atMost(each)
  // The server answers each of several prompts apart.
  return atMost(each * body.found.reduce((sum, { texts }) => sum + (texts?.inputs ?? 0), 0))
}

/** The number of entries that the request asks of the answer; null where it does not say. */
export function entriesOf({ endpoint, fields }: BodyFacts, { inputs }: Prompt): number | null {
  if (endpoint.answer.entry === null) return null
  if (endpoint.usage.output !== null)
    return atMost(asked(fields.get('n')) * (endpoint.choicesPerText ? inputs : 1))
  // A rerank with `top_n` returns only its best documents.
  return Math.min(inputs, asked(fields.get('top_n'), inputs))
}

function asked(field: Field | undefined, otherwise = 1): number {
  const number = field?.number ?? null
  return number !== null && Number.isInteger(number) && number > 0 ? number : otherwise
}

/** The largest value of the fields of a role; 0 without a positive integer, and then the line fails. */
function largest(fields: readonly Field[], role: FieldRole): number {
  let most = 0
  for (const field of fields) {
    if (field.role === role && field.number !== null && Number.isInteger(field.number))
      most = Math.max(most, field.number)
  }
  return most
}

/**
 * The index of an input file, stored as JSON: enough to plan and project a batch without reading the file.
 */
export interface FileIndex {
  chunks: ChunkSpan[]
  /** Sums by (model, entity), at most GROUPS_MAX of them. */
  groups: TokenSums[]
  /**
   * Sums by model alone, over the lines that came after GROUPS_MAX pairs and belong to none of them. Their entities are
   * known only line by line. Empty for nearly every file.
   */
  unattributed: TokenSums[]
  /** The shared beginnings of the file's prompts; absent where unknown. */
  sharing?: Sharing
}

/** The limit of groups, which bounds the index of a file with very many entities. */
export const GROUPS_MAX = 20_000
