// The composition root of the command line: reads the environment, and connects commands to what they start.
import { runProgram } from './cli/program.ts'
import type { Running, ServeOptions } from './cli/shell.ts'
import { interruption } from './cli/terminal/failure.ts'
import { version } from './compose/version.ts'
import type { Config } from './config/config.ts'
import { systemClock } from './domain/clock.ts'

const { env, stdout, stderr } = process

// A reader that closes the pipe early, such as `head`, is not an error, and a command needs no reader of its messages.
stderr.on('error', () => {})
stdout.on('error', (error) => {
  if ('code' in error && error.code === 'EPIPE') process.exit(0)
  stderr.write(`offpeak: the output cannot be written: ${error.message}\n`)
  process.exit(1)
})

const code = await runProgram(process.argv.slice(2), {
  launch: {
    // Loaded when needed: a command that only calls the API starts without a server, a database or the schema.
    loadConfig: async ({ config, ...overrides }) =>
      (await import('./config/load.ts')).loadConfig({ file: config, env, overrides }),
    serve: startService,
    reload: async (config) => (await import('./compose/control-socket.ts')).askToReload(config.data_dir),
    shownConfig: async (config) => (await import('./config/shown-config.ts')).shownConfigAsYaml(config),
    keys: async (config, makes) => (await import('./compose/keys.ts')).keys(config, makes),
    doctor: async (config) => (await import('./compose/doctor.ts')).doctor(config),
    adminCommands: async () =>
      (await import('./compose/admin-commands.ts')).adminCommands((name) => set(env[name])),
    sim: async (order) => (await import('./backends/sim/sim-server.ts')).simServer(order),
  },
  access: { baseUrl: set(env.OFFPEAK_BASE_URL), apiKey: set(env.OFFPEAK_API_KEY) },
  env,
  terminal: {
    stdout,
    stderr,
    get stdin() {
      return process.stdin
    },
  },
  clock: systemClock,
  interruption: interruption(process, { clock: systemClock, underNpm: set(env.npm_command) !== undefined }),
  version: version(),
  withStack: env.OFFPEAK_LOG_LEVEL === 'debug' || env.OFFPEAK_LOG_LEVEL === 'trace',
})

// A failed command may have left timers or sockets open, which must not keep the process running.
stdout.write('', (error) => {
  // After an error of the output, its listener ends the process.
  if (!error) process.exit(code)
})

/** Starts the worker processes first, so that they load while this process loads the server, which takes as long. */
async function startService(config: Config, options: ServeOptions): Promise<Running> {
  const { forkWorkers, workerCount } = await import('./compose/fork-worker.ts')
  // With --upstream, the server has to say first what there is to work on.
  const isKnown = options.role === 'all' && options.upstream === undefined
  const workers = isKnown ? forkWorkers(workerCount(config)) : null
  const { serve } = await import('./compose/serve.ts')
  return await serve(config, options, env, workers)
}

/** An empty variable counts as not set. */
function set(value: string | undefined): string | undefined {
  return value?.trim() || undefined
}
