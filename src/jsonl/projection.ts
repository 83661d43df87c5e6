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
  /** Estimated; of a prompt with unseen parts, a whole window. */
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
  /** The part of `input_tokens` for media and token IDs; absent: none, as the next two. */
  exact_tokens?: number
  media_parts?: number
  /** Lines whose prompts have unseen parts, beside those estimated. */
  unseen_lines?: number
  /** Over the lines that set max_tokens (or max_completion_tokens), times their `n`. */
  output_tokens_max_given: number
  /** Over the lines that set neither: the sum of their `n`, to be multiplied by the model's max_output_tokens. */
  open_choices: number
  /** The most tokens that the prompt of one of the lines may have; absent: any number. */
  reach?: number
  /** The sums of lines with long prompts, which are in none of the above: by their reach, since prices go by it. */
  longer?: TokenSums[]
}

/** Prices step up at longer prompts than this. */
const LONG_TOKENS_MIN = 32_768

/** Tokens that a picture or a piece of sound is taken for: servers differ, most count some hundreds to two thousand. */
const MEDIA_PART_TOKENS = 1000

/** A line cannot claim more than this; a larger number would be refused by the model anyway. */
const TOKENS_MAX = 2 ** 31

/** The most that one line may use. A model without `max_output_tokens` adds nothing where a line sets no limit. */
export function projectTokens(line: InputLine, model: Model): ProjectedTokens {
  const { body } = line
  const output = outputTokensGiven(body) ?? model.max_output_tokens ?? 0
  return {
    input_tokens: body.unseen ? windowOf(model.context_window) : projectPrompt(body, model),
    output_tokens_max: atMost(output * choicesOf(body)),
  }
}

/** Estimated tokens of a prompt, as far as the body has it. */
export function projectPrompt(body: BodyFacts, model: Model): number {
  const prompt = promptOf(body)
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
  const reach = promptReach(body)
  const sums = reach > LONG_TOKENS_MIN ? longerSums(group, reach) : group
  sums.reach = Math.max(sums.reach ?? 0, reach)
  sums.lines++
  if (body.unseen) sums.unseen_lines = (sums.unseen_lines ?? 0) + 1
  else {
    const prompt = promptOf(body)
    sums.exact_tokens = atMost((sums.exact_tokens ?? 0) + prompt.exact_tokens)
    sums.input_tokens = atMost(sums.input_tokens + estimateInput(prompt))
  }
  if (output === null) sums.open_choices = atMost(sums.open_choices + choicesOf(body))
  else sums.output_tokens_max_given = atMost(sums.output_tokens_max_given + output * choicesOf(body))
}

/** The sums of the lines whose reach is between the same powers of two. */
function longerSums(group: TokenSums, reach: number): TokenSums {
  group.longer ??= []
  const power = (tokens = 0): number => Math.ceil(Math.log2(tokens))
  const found = group.longer.find((one) => power(one.reach) === power(reach))
  if (found !== undefined) return found
  const sums = emptySums(group.model, group.entity)
  group.longer.push(sums)
  return sums
}

/** The most tokens that the prompt of a line may have, in any tokenizer and with any chat template (prompt-bound.ts). */
export function promptReach(body: BodyFacts): number {
  const { endpoint, found, messages, span, unseen } = body
  if (unseen) return COUNT_MAX
  const { bytes, inputs } = promptOf(body)
  let reach = Math.max(bytes, span.end - span.start) + endpoint.templateTokensMax * inputs
  reach += messages.media_parts * IMAGE_TOKENS
  for (const { name, texts, start, end } of found) {
    reach += (texts?.media_parts ?? 0) * IMAGE_TOKENS
    if (WRITTEN_TWICE.includes(name)) reach += end - start
  }
  return atMost(reach)
}

/** Fields that templates write anew. */
const WRITTEN_TWICE: readonly string[] = ['tools', 'response_format', 'text', 'output_config']

/** The sums of a group by the reach of its lines. */
export function partsOf({ longer = [], ...sums }: TokenSums): TokenSums[] {
  return [sums, ...longer]
}

/** The most that the lines of one group may use on `model`. */
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
  // Each line is rounded up on its own.
  const rounding = Math.max(0, sums.lines - unseen_lines - 1)
  const seen = projectedInput(sums.input_tokens, exactTokensOf(sums), model, rounding)
  return {
    input_tokens: atMost(seen + unseen_lines * windowOf(model.context_window)),
    output_tokens_max: atMost(sums.output_tokens_max_given + open),
  }
}

/** The most that all attempts at such lines may use, which `reask` allows. A repair has the answer and its faults in its prompt. */
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

/** Tokens that a repair of each of these lines may add to their prompts: the answer, and what is wrong with it. */
export function repairTokensMax(output_tokens_max: number, lines = 1): number {
  return output_tokens_max + lines * REPAIR_TOKENS_MAX
}

/**
 * The projected tokens and spend of such lines, all attempts at them included; nothing where the model is unknown, since the
 * line then fails alone. `reach`: what each of their prompts may have at most.
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
  /** Tokens that do not depend on bytes: of media, by the piece, and of token IDs. */
  exact_tokens: number
  /** How many prompts it makes: each of several texts is one, and so is each pair. */
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
    // A query goes with each of the documents.
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

function exactTokensOf({ exact_tokens, media_parts = 0 }: TokenSums): number {
  return exact_tokens ?? media_parts * MEDIA_PART_TOKENS
}

/** The estimate for any model, by what is known of this one. */
function projectedInput(estimated: number, exact: number, { seen }: Model, rounding = 0): number {
  const text = Math.max(0, estimated - exact)
  const projected = projectedTokens(text, seen)
  return atMost((projected === text ? text : projected + rounding) + exact)
}

/** Servers differ in which of two limits they obey when both are given: projected is the larger. 0 where nothing is generated. */
function outputTokensGiven({ endpoint, found }: BodyFacts): number | null {
  if (endpoint.usage.output === null) return 0
  // A server may obey the one of several limits that stands for none.
  if (found.some(({ role, number }) => role === 'limit' && number !== null && number <= 0)) return null
  const given = largest(found, 'limit')
  return given === 0 ? null : Math.min(given, TOKENS_MAX)
}

/** Servers differ in which of several limits they obey: the smallest is certain. 0 where there is none. */
export function outputTokensAtLeast({ found }: BodyFacts): number {
  let least = Number.POSITIVE_INFINITY
  for (const { role, number } of found)
    if (role === 'limit' && number !== null && number > 0) least = Math.min(least, number)
  return Number.isFinite(least) ? least : 0
}

/** How many answers are generated for the line. */
export function choicesOf(body: BodyFacts): number {
  if (body.endpoint.usage.output === null) return 0
  const each = Math.max(largest(body.found, 'choices'), 1)
  if (!body.endpoint.choicesPerText) return atMost(each)
  // Prompts and embeddings of prompts are answered apart.
  return atMost(each * body.found.reduce((sum, { texts }) => sum + (texts?.inputs ?? 0), 0))
}

/** How many entries the answer has by the request; null where it does not say. */
export function entriesOf(body: BodyFacts): number | null {
  const { endpoint, fields } = body
  if (endpoint.answer.entry === null) return null
  const { inputs } = promptOf(body)
  if (endpoint.usage.output !== null)
    return atMost(asked(fields.get('n')) * (endpoint.choicesPerText ? inputs : 1))
  // The best of them alone.
  return Math.min(inputs, asked(fields.get('top_n'), inputs))
}

function asked(field: Field | undefined, otherwise = 1): number {
  const number = field?.number ?? null
  return number !== null && Number.isInteger(number) && number > 0 ? number : otherwise
}

/** 0 for what is no positive integer: such a line fails alone. */
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
  /** By (model, entity), at most GROUPS_MAX of them. */
  groups: TokenSums[]
  /**
   * By model alone: the lines that came after the file had named GROUPS_MAX pairs and belong to none of
   * them. Their entities are known only line by line. Empty for nearly every file.
   */
  unattributed: TokenSums[]
  /** The beginnings that its prompts have in common; absent where that is not known. */
  sharing?: Sharing
}

/** Bounds the index of a file that names very many entities. */
export const GROUPS_MAX = 20_000
