// Starts a service: first its worker processes, so that they load while this one loads the server, which takes as long.
import type { Running, ServeOptions } from '../cli/launch.ts'
import type { Config } from '../config/config.ts'
import { forkWorkers, workerCount } from './fork-worker.ts'

export async function startService(
  config: Config,
  options: ServeOptions,
  variable: (name: string) => string | undefined,
): Promise<Running> {
  // With --upstream, the server has to say first what there is to work on.
  const isKnown = options.role === 'all' && options.upstream === undefined
  const workers = isKnown ? forkWorkers(workerCount(config), options.early) : null
  const { serve } = await import('./serve.ts')
  return await serve(config, options, variable, workers)
}
