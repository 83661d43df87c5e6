// Starts the simulator as a server of its own.
import { simServer } from '../backends/sim/sim-server.ts'
import type { Running, SimOrder } from '../cli/shell.ts'

export async function sim({ log, ...order }: SimOrder): Promise<Running> {
  const server = await simServer({ ...order, log_file: log })
  const ended = Promise.withResolvers<void>()
  return {
    url: server.base_url.replace(/\/v1$/, ''),
    stopped: ended.promise,
    async stop() {
      await server.close()
      ended.resolve()
    },
  }
}
