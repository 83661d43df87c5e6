// How each known engine is started: its command, variables, files and room.
import type { ENGINE_VARIABLES } from '../config/load.ts'
import type { GgufModel } from './gguf.ts'

/**
 * The way to start an engine. Placeholders: `{model}` is the file or the name that the user gave, `{name}` the name in
 * lines; `{slots}` and `{context}` are computed from the model and the machine; the worker fills in `{port}`,
 * `{socket}`, `{files}` and `{api_key}`. No argument has a key: every user of the machine can read arguments.
 */
export interface Recipe {
  /** The name of the engine as `--engine` takes it. */
  name: string
  title: string
  /** The variable that names the program, where it is not on the PATH. */
  variable: (typeof ENGINE_VARIABLES)[number]
  /** The command line that starts the engine, the program first. */
  command: readonly string[]
  env: Readonly<Record<string, string>>
  /** Variables of the service that the engine needs, such as the token for its models. */
  pass_env: readonly string[]
  files: Readonly<Record<string, string>>
  ready: string
  /** Whether the server answers to the names in lines; otherwise they are replaced by the model's own. */
  takesAnyName: boolean
  /** Whether the engine needs a GPU for itself where the machine has one. */
  usesGpu: boolean
  /** The lines in flight for each slot, or in all where the engine decides on slots itself. */
  concurrency: { perSlot: number } | { total: number }
  /** The command that installs the engine. */
  install: string
}

/** The token for models from Hugging Face, some of which require it. */
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
      // Without this option, answers do not report the prefix cache.
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
  /** The path of the engine's program, from its variable or the PATH. */
  program: string
  model: string
  name: string
  slots: number
  /** The context window of the llama.cpp server in tokens, over all its slots. */
  context: number
}

/** The command line of the engine, except for port and key. */
export function commandOf(recipe: Recipe, { program, ...values }: RecipeValues): string[] {
  const [, ...args] = recipe.command
  const filled = args.map((word) =>
    word.replaceAll(/\{(model|name|slots|context)\}/g, (_, key: keyof typeof values) => String(values[key])),
  )
  return [program, ...filled]
}

// Decides on the number of concurrent requests of a llama.cpp server, and on the tokens of each.

/** The share of free memory for weights and cache; the rest is for the server's other needs. */
const MEMORY_SHARE = 0.7
const SLOTS_MAX = { cpu: 8, gpu: 32 }
const CONTEXT_MIN = 1024
/** The number of which a context window in tokens is a multiple. */
const CONTEXT_STEP = 256
/** The context length in tokens for a model that does not have one. */
const CONTEXT_DEFAULT = 8192

interface Slots {
  slots: number
  /** The context window of each slot in tokens. */
  contextEach: number
}

/** Decides on slots and contexts. `neededTokens`: the tokens of the longest request with its answer. */
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
