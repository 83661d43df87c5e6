// What this machine has that engines can use.
import { readdirSync } from 'node:fs'
import { totalmem } from 'node:os'

const GPU_DEVICE = /^nvidia\d+$/

/** The names of GPUs as CUDA_VISIBLE_DEVICES has them; `auto`: the visible ones, else the devices of the system. */
export function availableGpus(count: number | 'auto', visible: string | undefined): string[] {
  const named = visible
    ?.split(',')
    .map((name) => name.trim())
    .filter((name) => name !== '' && name !== '-1')
  const found = named ?? gpuDevices()
  if (count === 'auto') return found
  return Array.from({ length: count }, (_, i) => found[i] ?? String(i))
}

function gpuDevices(): string[] {
  try {
    const names = readdirSync('/dev').filter((name) => GPU_DEVICE.test(name))
    return names.map((name) => name.replace('nvidia', '')).sort((a, b) => Number(a) - Number(b))
  } catch {
    return []
  }
}

export function installedMemory(): number {
  return totalmem()
}
