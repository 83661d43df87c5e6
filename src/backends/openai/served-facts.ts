// What a server's list of models says of a model beside its endpoints. There is no standard for it either:
// - `max_model_len`: vLLM, SGLang; `meta.n_ctx`, in older versions `meta.n_ctx_train` alone: llama.cpp
// - `context_window`, `context_length`, `loaded_context_length`, `max_context_length`: this service, Groq, OpenRouter,
//   Together, LM Studio, Mistral
// - `max_input_tokens`, and `max_output_tokens` beside it: LiteLLM
// - `parent`: the model that a LoRA adapter belongs to, `root`: the weights behind a name (vLLM, SGLang)
import { isRecord } from '../json-record.ts'

const WINDOW_MIN = 16
const WINDOW_MAX = 2 ** 30

export interface ServedFacts {
  /** Tokens of input and output together; null where the server does not say. */
  context_window: number | null
  /** Of a LoRA adapter: the ID of its base model. */
  parent: string | null
  /** Two IDs with the same root are names of one model. */
  root: string | null
}

export function servedFacts(model: Readonly<Record<string, unknown>>): ServedFacts {
  const meta = isRecord(model.meta) ? model.meta : {}
  const windows = [
    model.max_model_len,
    meta.n_ctx,
    model.context_window,
    model.loaded_context_length,
    model.context_length,
    model.max_context_length,
    meta.n_ctx_train,
    sumOf(model.max_input_tokens, model.max_output_tokens),
  ]
  return {
    context_window: windows.find(isWindow) ?? null,
    parent: textOf(model.parent),
    root: textOf(model.root),
  }
}

/** What no model has would have every line refused, or none. */
function isWindow(value: unknown): value is number {
  return Number.isInteger(value) && Number(value) >= WINDOW_MIN && Number(value) <= WINDOW_MAX
}

function sumOf(input: unknown, output: unknown): unknown {
  return typeof input === 'number' && typeof output === 'number' ? input + output : input
}

function textOf(value: unknown): string | null {
  return typeof value === 'string' && value !== '' ? value : null
}
