// serve, api and worker: run the service in one of its roles until a signal stops it. config checks and shows its
// configuration, reload has running services take it up.
import { existsSync, readFileSync } from 'node:fs'
import type { Command } from 'commander'
import { apiKeyPath } from '../../config/config.ts'
import { sleep } from '../../domain/clock.ts'
import type { ConfigFlags, Role, Shell } from '../shell.ts'
import { aborted, Failure, Interrupted } from '../terminal/failure.ts'
import { examples, withConfig, withJson, withUpstream } from '../terminal/option-values.ts'
import { printJson, writeLine } from '../terminal/terminal.ts'

interface ServeFlags extends ConfigFlags {
  upstream?: string
  upstreamKeyEnv?: string
}

/** Added to the time in which calls and lines in flight may finish. */
const STOP_EXTRA_MS = 1500

export function addServe(program: Command, shell: Shell): void {
  const serve = program.command('serve').description('run the service: the API and its workers')
  examples(
    listening(withConfig(serve))
      .option('--workers <count>', 'worker processes, or auto: by the number of cores (default: auto)')
      .action((flags: ServeFlags) => runService(shell, 'all', flags)),
    'offpeak serve',
    'offpeak serve --upstream http://127.0.0.1:8000/v1   # in front of vLLM, Ollama, …',
    'offpeak serve --config offpeak.yaml --port 0        # any free port',
  )
  const api = program.command('api').description('run only the API; workers run elsewhere')
  listening(withConfig(api)).action((flags: ServeFlags) => runService(shell, 'api', flags))
  const worker = program.command('worker').description('run only a worker; any number of workers can run')
  withUpstream(withConfig(worker)).action((flags: ServeFlags) => runService(shell, 'worker', flags))
}

function listening(command: Command): Command {
  return withUpstream(
    command
      .option('--host <address>', 'address to listen on (default: 127.0.0.1)')
      .option('--port <number>', 'port to listen on, 0 for any free one (default: 8080)'),
  )
}

async function runService(shell: Shell, role: Role, flags: ServeFlags): Promise<void> {
  const { stdout, stderr } = shell.terminal
  const signal = shell.interruption()
  const config = await shell.launch.loadConfig(flags)
  const [keyPath, strictKeyPath] = [apiKeyPath(config), apiKeyPath(config, 'openai')]
  const [hadKey, hadStrictKey] = [existsSync(keyPath), existsSync(strictKeyPath)]
  const starting = shell.launch.serve(config, {
    role,
    upstream: flags.upstream,
    upstreamKeyEnv: flags.upstreamKeyEnv,
    signal,
    tell: (text) => writeLine(stderr, `offpeak: ${text}`),
    reload: () => shell.launch.loadConfig(flags),
  })
  const running =
    (await Promise.race([starting, aborted(signal)])) ?? (await within(shell, STOP_EXTRA_MS, starting))
  if (!running) throw new Interrupted('stopped before the service had started')
  if (!hadKey && existsSync(keyPath))
    writeLine(stderr, `offpeak: created the project "default"; its API key is in ${keyPath}`)
  if (!hadStrictKey && existsSync(strictKeyPath))
    writeLine(
      stderr,
      `offpeak: created an API key for OpenAI's SDKs and other strict clients in ${strictKeyPath}`,
    )
  writeLine(stdout, running.url === null ? 'offpeak worker ready' : `offpeak listening on ${running.url}`)
  await Promise.race([aborted(signal), running.stopped])
  if (!signal.aborted) throw new Failure('the service stopped unexpectedly; see its log for the reason')
  const stopped = running.stop().then(() => true)
  if (!(await within(shell, config.listen.stop_delay_ms + config.worker.drain_ms + STOP_EXTRA_MS, stopped)))
    throw new Failure(
      'the shutdown took longer than listen.stop_delay and worker.drain allow and was aborted; lines in flight are sent again later',
    )
}

/** Undefined where `work` takes longer. */
async function within<T>({ clock }: Shell, ms: number, work: Promise<T>): Promise<T | undefined> {
  const over = new AbortController()
  try {
    return await Promise.race([work, sleep(clock, ms, over.signal).then(() => undefined)])
  } finally {
    // A pending timer would keep the process alive.
    over.abort()
  }
}

/** Drawn by `npm run docs`. */
const SCHEMA = new URL('../../../docs/offpeak.schema.json', import.meta.url)

export function addConfig(program: Command, shell: Shell): void {
  const { stdout } = shell.terminal
  const config = program
    .command('config')
    .description('check a configuration file, show what is in force, print the JSON Schema')
  config
    .command('check')
    .description('report everything that is wrong with a configuration file and the OFFPEAK_ variables')
    .argument('[file]', 'the configuration file (default: offpeak.yaml if there is one)')
    .action(async (file: string | undefined) => {
      await shell.launch.loadConfig({ config: file })
      const { configFileName } = await import('../../config/sources.ts')
      const name = configFileName(file, shell.env.OFFPEAK_CONFIG || undefined, process.cwd())
      writeLine(stdout, `${name ?? 'No offpeak.yaml is in this folder: the default configuration'} is valid.`)
    })
  withConfig(withJson(config.command('show')))
    .description('print the configuration in force, with defaults filled in and secrets hidden')
    .action(async (flags: ConfigFlags & { json?: boolean }) => {
      const { values, yaml } = await shell.launch.shownConfig(await shell.launch.loadConfig(flags))
      if (flags.json) printJson(stdout, values)
      else stdout.write(yaml)
    })
  config
    .command('schema')
    .description('print the JSON Schema of the configuration file, for editors')
    .action(() => {
      stdout.write(readFileSync(SCHEMA, 'utf8'))
    })
  examples(config, 'offpeak config check offpeak.yaml', 'offpeak config schema > offpeak.schema.json')
}

/** reload: has running services take up a changed configuration file. */
export function addReload(program: Command, shell: Shell): void {
  const reload = program
    .command('reload')
    .description('have the services of a data folder take up changed models, prices, upstreams and hours')
  examples(
    withConfig(reload).action((flags: ConfigFlags) => reloadServices(shell, flags)),
    'offpeak reload',
  )
}

async function reloadServices(shell: Shell, flags: ConfigFlags): Promise<void> {
  const { stdout, stderr } = shell.terminal
  // A file with mistakes is reported here already, and no service is asked.
  const config = await shell.launch.loadConfig(flags)
  const answers = await shell.launch.reload(config)
  if (answers.size === 0)
    throw new Failure(
      `no service that runs on this machine uses the data folder ${config.data_dir}; name it with --data`,
    )
  const failed: string[] = []
  for (const [pid, { error, needsRestart }] of answers) {
    if (error !== null) failed.push(`process ${pid} changed nothing: ${error}`)
    else writeLine(stdout, `process ${pid} has taken up the configuration`)
    if (error === null && needsRestart.length > 0)
      writeLine(stderr, `offpeak: process ${pid} needs a restart for changes of ${needsRestart.join(', ')}`)
  }
  if (failed.length > 0) throw new Failure(failed.join('\n'))
}
