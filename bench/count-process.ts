// Preloaded into the processes of a service that is measured (NODE_OPTIONS=--import …). On SIGUSR2 a process writes down what
// it has done since its start, into COUNTS_FILE and its process ID.
import { writeFileSync } from 'node:fs'
import { Socket } from 'node:net'
import { StatementSync } from 'node:sqlite'
import { getHeapStatistics } from 'node:v8'

const counts = { statements: 0, socketWrites: 0 }

/** Calls of these methods are counted. */
function count(of: object, name: keyof typeof counts, methods: readonly string[]): void {
  const target = of as Record<string, (...args: unknown[]) => unknown>
  for (const method of methods) {
    const original = target[method]!
    target[method] = function (this: unknown, ...args) {
      counts[name]++
      return original.apply(this, args)
    }
  }
}

count(StatementSync.prototype, 'statements', ['run', 'get', 'all', 'iterate'])
count(Socket.prototype, 'socketWrites', ['write'])

process.on('SIGUSR2', () => {
  const heapBytes = getHeapStatistics().total_allocated_bytes
  writeFileSync(`${process.env.COUNTS_FILE}-${process.pid}`, JSON.stringify({ ...counts, heapBytes }))
})
