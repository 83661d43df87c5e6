// What the configuration says about an engine: a model server that the worker starts when lines wait for its model.

export interface EngineSpec {
  /** `{port}`, `{api_key}` and `{model}` are filled in. */
  command: readonly string[]
  /** The path that answers 200 once the server takes requests. */
  ready: string
  start_timeout_ms: number
  idle_timeout_ms: number
  /** Added to the environment; filled in like the command. */
  env: Readonly<Record<string, string>>
  /** Of the machine, for as long as it runs. */
  gpus: number
  memory_bytes: number
}

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

/** Other braces stay as they are: arguments may be JSON. */
export function filled(text: string, values: Partial<Filling>): string {
  return text.replaceAll(PLACEHOLDER, (found, name: keyof Filling) => String(values[name] ?? found))
}
