// Fills in the placeholders of an engine's command, and describes what engines are given: a machine and a place to listen.
import { randomBytes } from 'node:crypto'
import { join } from 'node:path'
import type { EngineConfig } from '../config/config.ts'
import type { EngineOrder } from './engine-process.ts'

/** What engines may use of this machine together, and how long one runs before another may take its place. */
export interface MachineSpec {
  /** What CUDA_VISIBLE_DEVICES calls the GPUs. */
  gpus: readonly string[]
  memory_bytes: number
  run_ms_min: number
}

const PLACEHOLDER = /\{(port|socket|files|api_key|model)\}/g

/** What an engine is given to listen on. */
export interface EnginePlace {
  /** On 127.0.0.1; null: it listens on the socket. */
  port: number | null
  /** Its own, 0700; null where it needs none. */
  folder: string | null
}

/** llama.cpp takes an address for a socket by its ending. */
const SOCKET_NAME = 'engine.sock'
const FILES_NAME = 'files'

/** Null: it listens on a port. */
export function socketOf({ port, folder }: EnginePlace): string | null {
  return port === null && folder !== null ? join(folder, SOCKET_NAME) : null
}

type Filling = Record<'port' | 'socket' | 'files' | 'api_key' | 'model', string>

export function usesPlaceholder(
  { command, env, files }: Pick<EngineConfig, 'command' | 'env' | 'files'>,
  name: keyof Filling,
): boolean {
  const words = [...command, ...Object.values(env), ...Object.values(files)]
  return words.some((word) => word.includes(`{${name}}`))
}

export function newApiKey(): string {
  return randomBytes(24).toString('base64url')
}

/** Other braces stay as they are: arguments may be JSON. */
export function filled(text: string, values: Partial<Filling>): string {
  return text.replaceAll(PLACEHOLDER, (found, name: keyof Filling) => values[name] ?? found)
}

/** `gpus`: those that it may use; where there are none, it is not told of any. */
export function orderOf(
  { command, env, pass_env, files }: EngineConfig,
  place: EnginePlace,
  { api_key, model }: { api_key: string; model: string },
  gpus: readonly string[] = [],
): EngineOrder {
  const { port, folder } = place
  const socket = socketOf(place)
  const filesFolder = join(folder ?? '', FILES_NAME)
  const values = {
    ...{ api_key, model },
    ...(port === null ? {} : { port: String(port) }),
    ...(socket === null ? {} : { socket }),
    ...(folder === null ? {} : { files: filesFolder }),
  }
  const fill = (texts: Readonly<Record<string, string>>): Record<string, string> =>
    Object.fromEntries(Object.entries(texts).map(([name, text]) => [name, filled(text, values)]))
  const devices: Record<string, string> = gpus.length === 0 ? {} : { CUDA_VISIBLE_DEVICES: gpus.join(',') }
  return {
    command: command.map((word) => filled(word, values)),
    env: { ...environmentOf(process.env, pass_env), ...devices, ...fill(env) },
    folder,
    files: Object.fromEntries(
      Object.entries(fill(files)).map(([name, text]) => [join(filesFolder, name), text]),
    ),
  }
}

/** What engines and their runtimes read; nothing of it is a credential. */
const PASSED = new Set([
  ...['PATH', 'HOME', 'USER', 'LOGNAME', 'SHELL', 'TMPDIR', 'TZ', 'LANG', 'LANGUAGE', 'TERM'],
  ...['LD_LIBRARY_PATH', 'LIBRARY_PATH', 'VIRTUAL_ENV', 'CONDA_PREFIX', 'TOKENIZERS_PARALLELISM', 'MAX_JOBS'],
  ...['SSL_CERT_FILE', 'SSL_CERT_DIR', 'REQUESTS_CA_BUNDLE', 'CURL_CA_BUNDLE', 'CC', 'CXX'],
])
const PASSED_BEGINNINGS = [
  ...['LC_', 'XDG_', 'PYTHON', 'OMP_', 'KMP_', 'MKL_', 'OPENBLAS_', 'TORCH', 'PYTORCH_', 'TRITON_', 'NUMBA_'],
  ...['CUDA_', 'NVIDIA_', 'NCCL_', 'HIP_', 'ROCR_', 'ROCM_', 'HSA_', 'GPU_', 'ZE_', 'ONEAPI_', 'SYCL_'],
  ...[
    'GGML_',
    'LLAMA_',
    'VLLM_',
    'SGL_',
    'SGLANG_',
    'OLLAMA_',
    'MLX_',
    'HF_',
    'HUGGINGFACE_',
    'TRANSFORMERS_',
  ],
]
const PROXIES = /^(https?|all|no)_proxy$/i
const CREDENTIAL = /KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH/i

/** `names`: those that are passed whatever they are. */
function environmentOf(env: NodeJS.ProcessEnv, names: readonly string[]): Record<string, string> {
  const isPassed = (name: string, value: string): boolean => {
    if (names.includes(name) || PASSED.has(name)) return true
    // A proxy's address may have a password.
    if (PROXIES.test(name)) return !value.includes('@')
    return PASSED_BEGINNINGS.some((beginning) => name.startsWith(beginning)) && !CREDENTIAL.test(name)
  }
  const entries = Object.entries(env).flatMap(([name, value]) =>
    value !== undefined && isPassed(name, value) ? [[name, value] as const] : [],
  )
  return Object.fromEntries(entries)
}
