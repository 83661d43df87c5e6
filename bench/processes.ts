// Starts the processes that a benchmark measures, and reads what the system says of them.
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { createInterface } from 'node:readline'

export interface Started {
  process: ChildProcess
  /** The first line it printed. */
  first: string
  /** CPU so far of the process and its children, in microseconds. */
  cpu_us(): number
  /** Peak resident memory so far of the process and of each of its children, in MiB. */
  peak_mib(): number[]
  /** The same, as it is now. `Pss`: what processes share, such as Node's code, in equal parts. */
  resident_mib(field?: 'Rss' | 'Pss'): number[]
  stop(): Promise<void>
}

/** Microseconds per clock tick of /proc. */
const TICK_US = 10_000

/** Runs a TypeScript file with this Node, and resolves with the first line it prints. */
export async function start(
  file: string,
  args: readonly string[],
  env: NodeJS.ProcessEnv = {},
): Promise<Started> {
  const child = spawn(process.execPath, [file, ...args], {
    stdio: ['ignore', 'pipe', 'inherit'],
    env: { ...process.env, ...env },
  })
  const lines = createInterface({ input: child.stdout })
  const first = await new Promise<string>((resolve, reject) => {
    lines.once('line', resolve)
    child.once('exit', (code) => reject(new Error(`${file} ended with ${code} before it said anything`)))
  })
  return {
    process: child,
    first,
    cpu_us: () => familyOf(child.pid).reduce((sum, pid) => sum + cpuOf(pid), 0),
    peak_mib: () => familyOf(child.pid).map((pid) => memoryOf(pid, 'VmHWM')),
    resident_mib: (field = 'Rss') => familyOf(child.pid).map((pid) => memoryOf(pid, field)),
    async stop() {
      if (child.exitCode !== null) return
      child.kill('SIGTERM')
      await once(child, 'exit')
    },
  }
}

/** The process and its children, in the order of their birth. */
export function familyOf(pid: number | undefined): number[] {
  if (pid === undefined) return []
  const children = readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').trim()
  return [pid, ...(children === '' ? [] : children.split(' ').map(Number))]
}

function cpuOf(pid: number): number {
  const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
  return (Number(fields[11]) + Number(fields[12])) * TICK_US
}

/** In MiB; `VmHWM`: the most that was resident so far. */
export function memoryOf(pid: number, field: 'VmHWM' | 'Rss' | 'Pss'): number {
  const text = readFileSync(`/proc/${pid}/${field === 'VmHWM' ? 'status' : 'smaps_rollup'}`, 'utf8')
  return Math.round(Number(new RegExp(`^${field}:\\s+(\\d+)`, 'm').exec(text)?.[1]) / 1024)
}
