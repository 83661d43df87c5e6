// Serves the simulated engine over HTTP until its standard input ends, so that a benchmark can start one in a process of
// its own:  node bench/engine/engine-server.ts '{"step_ms": 25, "max_num_seqs": 64}'
// Its first line is the base URL for clients.
import { engineServer } from './served-engine.ts'

const { base_url } = await engineServer(JSON.parse(process.argv[2] ?? '{}'), {
  port: Number(process.env.PORT ?? 0),
})
console.log(base_url)
