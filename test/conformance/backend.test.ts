import { setImmediate } from 'node:timers/promises'
import { openaiBackend } from '../../src/backends/openai/openai-backend.ts'
import { simBackend } from '../../src/backends/sim/sim-backend.ts'
import { simServer } from '../../src/backends/sim/sim-server.ts'
import { Simulator } from '../../src/backends/sim/simulator.ts'
import { backendConformance } from './backend.ts'

/** Lets the event loop turn until `read` gives `wanted`: sockets have no signal for what the other side knows. */
async function until(read: () => number, wanted: number): Promise<void> {
  while (read() !== wanted) await setImmediate()
}

backendConformance('sim', async ({ timeout_ms, ...options }) => {
  const simulator = new Simulator(options)
  const backend = simBackend({ name: 'under-test', timeout_ms, simulator })
  const in_flight = () => simulator.stats.in_flight
  return { backend, in_flight, reaches: (wanted) => until(in_flight, wanted), release: async () => {} }
})

backendConformance('openai', async ({ timeout_ms = 60_000, ...options }) => {
  const server = await simServer({ port: 0, ...options })
  const { base_url } = server
  const backend = openaiBackend({ name: 'under-test', base_url, timeout_ms, connections_max: 64 })
  const in_flight = () => server.stats().in_flight
  return {
    backend,
    in_flight,
    reaches: (wanted) => until(in_flight, wanted),
    release: () => server.close(),
  }
})
