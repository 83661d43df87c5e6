// A process that a benchmark speaks with: a line in, and where it was asked something, a line out.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { createInterface } from 'node:readline'

export interface Controlled {
  /** The first line it printed. */
  first: string
  tell(line: string): void
  /** The next line it prints. */
  ask(line: string): Promise<string>
  stop(): Promise<void>
}

export async function startControlled(file: string, args: readonly string[]): Promise<Controlled> {
  const child = spawn(process.execPath, [file, ...args], { stdio: ['pipe', 'pipe', 'inherit'] })
  const lines = createInterface({ input: child.stdout })
  const next = async (): Promise<string> => {
    const [line]: unknown[] = await once(lines, 'line')
    return String(line)
  }
  const first = await next()
  const tell = (line: string): void => {
    child.stdin.write(`${line}\n`)
  }
  return {
    first,
    tell,
    async ask(line) {
      const answer = next()
      tell(line)
      return await answer
    },
    async stop() {
      if (child.exitCode !== null) return
      child.kill('SIGTERM')
      await once(child, 'exit')
    },
  }
}
