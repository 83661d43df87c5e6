// What engines share, and how the placeholders of an engine's command are filled in.
import { randomBytes } from 'node:crypto'
import type { EngineConfig } from '../config/config.ts'
import type { EngineOrder } from './engine-process.ts'

/** What engines may use of this machine together, and how long one runs before another may take its place. */
export interface MachineSpec {
  /** What CUDA_VISIBLE_DEVICES calls the GPUs. */
  gpus: readonly string[]
  memory_bytes: number
  run_ms_min: number
}

const PLACEHOLDER = /\{(port|api_key|model)\}/g

export interface Filling {
  port: number
  api_key: string
  model: string
}

export function newApiKey(): string {
  return randomBytes(24).toString('base64url')
}

/** Other braces stay as they are: arguments may be JSON. */
export function filled(text: string, values: Partial<Filling>): string {
  return text.replaceAll(PLACEHOLDER, (found, name: keyof Filling) => String(values[name] ?? found))
}

/** `gpus`: those that it may use; where there are none, it is not told of any. */
export function orderOf(
  { command, env }: EngineConfig,
  values: Filling,
  gpus: readonly string[] = [],
): EngineOrder {
  const variables = Object.entries(env).map(([name, value]) => [name, filled(value, values)])
  const devices = gpus.length === 0 ? {} : { CUDA_VISIBLE_DEVICES: gpus.join(',') }
  return {
    command: command.map((word) => filled(word, values)),
    env: { ...devices, ...Object.fromEntries(variables) },
  }
}
