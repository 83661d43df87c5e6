// What engines share, and how the placeholders of an engine's command are filled in.

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
