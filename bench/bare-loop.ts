// The baseline: sends the `body` of every line of a file with nothing but undici, at a fixed concurrency, and
// prints lines per second and its own CPU time per line, in all and in its main thread, as JSON.
import { readFileSync } from 'node:fs'
import { Pool } from 'undici'
import { cpuOf } from './harness.ts'

const [base_url = '', file = '', concurrency = '64'] = process.argv.slice(2)
const bodies = readFileSync(file, 'utf8')
  .split('\n')
  .filter(Boolean)
  .map((line) => Buffer.from(JSON.stringify(JSON.parse(line).body)))
const { origin, pathname } = new URL(base_url)
const pool = new Pool(origin, { connections: Number(concurrency), pipelining: 1 })
const headers = { 'content-type': 'application/json' }

let next = 0
async function loop(): Promise<void> {
  for (let body = bodies[next++]; body !== undefined; body = bodies[next++]) {
    const response = await pool.request({
      path: `${pathname}/chat/completions`,
      method: 'POST',
      headers,
      body,
    })
    await response.body.text()
  }
}

const before = process.cpuUsage()
const mainBefore = cpuOf(process.pid, 'main thread')
const start = performance.now()
await Promise.all(Array.from({ length: Number(concurrency) }, loop))
const seconds = (performance.now() - start) / 1000
const { user, system } = process.cpuUsage(before)
console.log(
  JSON.stringify({
    lines_per_s: Math.round(bodies.length / seconds),
    cpu_us_per_line: Math.round(((user + system) / bodies.length) * 10) / 10,
    main_us_per_line: (cpuOf(process.pid, 'main thread') - mainBefore) / bodies.length,
  }),
)
await pool.close()
