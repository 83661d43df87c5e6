// Serves the simulated engine over HTTP until its standard input ends, so that a benchmark can start one in a process of
// its own:  node bench/engine/engine-server.ts '{"step_ms": 25, "max_num_seqs": 64}'
// Its first line is the base URL for clients.
import { simServer } from '../../src/backends/sim/sim-server.ts'
import { systemClock } from '../../src/domain/clock.ts'
import { engineSettings } from './engine.ts'
import { ServedEngine } from './served-engine.ts'

const engine = new ServedEngine(engineSettings(JSON.parse(process.argv[2] ?? '{}')), {
  ...systemClock,
  now: systemClock.steady,
})
const { base_url } = await simServer({ port: Number(process.env.PORT ?? 0), engine })
console.log(base_url)
