// How each known engine is started: its command, variables, files and room.
import type { GgufModel } from './gguf.ts'

/**
 * `{model}` is the file or the name that the user gave, `{name}` what lines call it;
 * `{slots}` and `{context}` are worked out from the model and the machine; `{port}`, `{socket}`, `{files}` and `{api_key}`
 * stay for the worker. A key is in no argument: every user of the machine can read those.
 */
export interface Recipe {
  /** The name that `--engine` takes. */
  name: string
  title: string
  /** The variable that names the program, where it is not on the PATH. */
  variable: string
  /** The program first. */
  command: readonly string[]
  env: Readonly<Record<string, string>>
  /** Variables of the service that it needs, such as the token for its models. */
  pass_env: readonly string[]
  files: Readonly<Record<string, string>>
  ready: string
  /** Whether the server answers to the names that lines use; otherwise they are replaced by the model's own. */
  takesAnyName: boolean
  /** Whether it needs a GPU for itself where the machine has one. */
  usesGpu: boolean
  /** Lines in flight for each slot, or in all where the engine decides on slots itself. */
  concurrency: { perSlot: number } | { total: number }
  /** How to get it. */
  install: string
}

/** They load models from there, some of which ask for it. */
const HUGGING_FACE = ['HF_TOKEN']

export const RECIPES: readonly Recipe[] = [
  {
    name: 'llama.cpp',
    title: 'llama.cpp',
    variable: 'OFFPEAK_LLAMA_SERVER',
    command: [
      'llama-server',
      ...['--model', '{model}', '--alias', '{name}'],
      ...['--host', '{socket}'],
      ...['--parallel', '{slots}', '--ctx-size', '{context}'],
      ...['--metrics', '--jinja'],
    ],
    env: { LLAMA_API_KEY: '{api_key}' },
    pass_env: [],
    files: {},
    ready: '/health',
    takesAnyName: true,
    usesGpu: true,
    concurrency: { perSlot: 2 },
    install:
      'install llama.cpp (brew install llama.cpp, winget install llama.cpp, or a release of github.com/ggml-org/llama.cpp)',
  },
  {
    name: 'vllm',
    title: 'vLLM',
    variable: 'OFFPEAK_VLLM',
    command: [
      ...['vllm', 'serve', '{model}', '--served-model-name', '{name}', '--uds', '{socket}'],
      // Its answers say nothing of its prefix cache otherwise.
      '--enable-prompt-tokens-details',
    ],
    env: { VLLM_API_KEY: '{api_key}' },
    pass_env: HUGGING_FACE,
    files: {},
    ready: '/health',
    takesAnyName: false,
    usesGpu: true,
    concurrency: { total: 512 },
    install: 'install it with: pip install vllm',
  },
  {
    name: 'sglang',
    title: 'SGLang',
    variable: 'OFFPEAK_SGLANG',
    command: [
      ...['sglang', 'serve', '--model-path', '{model}', '--served-model-name', '{name}'],
      ...['--host', '127.0.0.1', '--port', '{port}', '--config', '{files}/key.yaml'],
    ],
    env: {},
    pass_env: HUGGING_FACE,
    files: { 'key.yaml': 'api-key: "{api_key}"\n' },
    ready: '/health',
    takesAnyName: false,
    usesGpu: true,
    concurrency: { total: 512 },
    install: 'install it with: pip install sglang',
  },
  {
    name: 'ollama',
    title: 'Ollama',
    variable: 'OFFPEAK_OLLAMA',
    command: ['ollama', 'serve'],
    env: { OLLAMA_HOST: '127.0.0.1:{port}', OLLAMA_NUM_PARALLEL: '4' },
    pass_env: [],
    files: {},
    ready: '/api/version',
    takesAnyName: false,
    usesGpu: true,
    concurrency: { total: 8 },
    install: 'install it from ollama.com, then fetch the model with: ollama pull NAME',
  },
  {
    name: 'mlx',
    title: 'MLX',
    variable: 'OFFPEAK_MLX',
    command: ['mlx_lm.server', '--model', '{model}', '--host', '127.0.0.1', '--port', '{port}'],
    env: {},
    pass_env: HUGGING_FACE,
    files: {},
    ready: '/health',
    takesAnyName: false,
    usesGpu: false,
    concurrency: { total: 8 },
    install: 'install it on a Mac with Apple silicon: pip install mlx-lm',
  },
]

interface RecipeValues {
  /** Where it is: what the variable names, or found on the PATH. */
  program: string
  model: string
  name: string
  slots: number
  /** Tokens over all slots. */
  context: number
}

/** The command line of the engine, but for port and key. */
export function commandOf(recipe: Recipe, { program, ...values }: RecipeValues): string[] {
  const [, ...args] = recipe.command
  const filled = args.map((word) =>
    word.replaceAll(/\{(model|name|slots|context)\}/g, (_, key: keyof typeof values) => String(values[key])),
  )
  return [program, ...filled]
}

// How many requests a llama.cpp server works on at once, and how many tokens each may have.

/** The share of the memory that is free now; the rest is for the needs of the server beside weights and cache. */
const MEMORY_SHARE = 0.7
const SLOTS_MAX = { cpu: 8, gpu: 32 }
const CONTEXT_MIN = 1024
/** A context is a multiple of it. */
const CONTEXT_STEP = 256
/** Where the model does not say. */
const CONTEXT_DEFAULT = 8192

interface Slots {
  slots: number
  /** Tokens of each. */
  contextEach: number
}

/** `neededTokens`: what the longest request and its answer may take. */
export function slotsOf(
  model: GgufModel | null,
  neededTokens: number,
  machine: { freeBytes: number; hasGpu: boolean },
): Slots {
  const most = model?.context_length ?? CONTEXT_DEFAULT
  const wanted = Math.ceil(Math.max(neededTokens, CONTEXT_MIN) / CONTEXT_STEP) * CONTEXT_STEP
  const contextEach = Math.min(wanted, most)
  const slotsMax = machine.hasGpu ? SLOTS_MAX.gpu : SLOTS_MAX.cpu
  if (model === null || model.cache_bytes_per_token === null) return { slots: slotsMax, contextEach }
  const room = machine.freeBytes * MEMORY_SHARE - model.bytes
  const fitting = Math.floor(room / (contextEach * model.cache_bytes_per_token))
  return { slots: Math.max(1, Math.min(slotsMax, fitting)), contextEach }
}
