// Starts the processes that a benchmark measures, and reads what the system says of them.
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { createInterface } from 'node:readline'

export interface Started {
  process: ChildProcess
  /** The first line it printed. */
  first: string
  /** CPU so far, in microseconds. */
  cpu_us(): number
  /** Peak resident memory so far, in MiB. */
  peak_mib(): number
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
    cpu_us() {
      const stat = readFileSync(`/proc/${child.pid}/stat`, 'utf8')
      const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
      return (Number(fields[11]) + Number(fields[12])) * TICK_US
    },
    peak_mib() {
      const status = readFileSync(`/proc/${child.pid}/status`, 'utf8')
      return Math.round(Number(/VmHWM:\s+(\d+)/.exec(status)?.[1]) / 1024)
    },
    async stop() {
      if (child.exitCode !== null) return
      child.kill('SIGTERM')
      await once(child, 'exit')
    },
  }
}
