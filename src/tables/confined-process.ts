// Starts a process for work on callers' tables and schemas, which may take any time and memory: with a small heap, and
// without the service's credentials. Its parent ends it at a time limit.
import { type ChildProcess, fork } from 'node:child_process'

/** Starts a process with the code of `file` (in this folder, without ending). `stdout`: whether its output is read. */
export function forkConfined(
  file: string,
  { heapMib, stdout = false }: { heapMib: number; stdout?: boolean },
): ChildProcess {
  const ending = import.meta.url.endsWith('.ts') ? 'ts' : 'js'
  const { NODE_COMPILE_CACHE } = process.env
  return fork(new URL(`./${file}.${ending}`, import.meta.url), {
    env: NODE_COMPILE_CACHE === undefined ? {} : { NODE_COMPILE_CACHE },
    execArgv: [`--max-old-space-size=${heapMib}`, '--max-semi-space-size=4'],
    serialization: 'advanced',
    // V8's messages about a full heap are discarded.
    stdio: ['ignore', stdout ? 'pipe' : 'ignore', 'ignore', 'ipc'],
  })
}
