// Runs the command line in a folder of its own: as processes, or in this process where only its output and its effects
// matter.
import assert from 'node:assert/strict'
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { simServer } from '../../src/backends/sim/sim-server.ts'
import type { ProgramOptions } from '../../src/cli/program.ts'
import { adminCommands } from '../../src/compose/admin-commands.ts'
import { askToReload } from '../../src/compose/control-socket.ts'
import { doctor } from '../../src/compose/doctor.ts'
import { keys } from '../../src/compose/keys.ts'
import { serve } from '../../src/compose/serve.ts'
import { version } from '../../src/compose/version.ts'
import { loadConfig } from '../../src/config/load.ts'
import { shownConfigAsYaml } from '../../src/config/shown-config.ts'
import { runOffpeak } from '../fakes/offpeak.ts'
import { cleanEnv, OFFPEAK } from './offpeak-process.ts'

export interface Ended {
  code: number | null
  out: string
  err: string
}

interface Started {
  child: ChildProcess
  /** The first line on stdout. */
  ready: string
  /** Sends the signal and waits for the end. */
  end(signal: NodeJS.Signals): Promise<Ended>
}

export class Shell implements AsyncDisposable {
  readonly #folder: string
  readonly #running = new Set<ChildProcess>()

  private constructor(folder: string) {
    this.#folder = folder
  }

  /** Its folder has `quick.yaml`, whose model answers at once, and `slow.yaml`, whose model takes ten minutes. */
  static async make(): Promise<Shell> {
    const shell = new Shell(await mkdtemp(join(tmpdir(), 'offpeak-cli-')))
    await writeFile(
      shell.at('quick.yaml'),
      'models: [{id: sim-1, price: {input_per_mtok: 0.1, output_per_mtok: 0.4}, upstreams: [{type: sim}]}]\n' +
        'log: {level: warn}\n',
    )
    await writeFile(
      shell.at('slow.yaml'),
      'models: [{id: sim-1, upstreams: [{type: sim, latency_ms: 600000}]}]\nworker: {drain: 10ms}\n' +
        'log: {level: warn}\n',
    )
    return shell
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const child of this.#running) child.kill('SIGKILL')
    await rm(this.#folder, { recursive: true, force: true })
  }

  at(name: string): string {
    return join(this.#folder, name)
  }

  /** Writes a file of these lines; returns its path. */
  async input(name: string, ...lines: object[]): Promise<string> {
    const path = this.at(name)
    await writeFile(path, lines.map((line) => `${JSON.stringify(line)}\n`).join(''))
    return path
  }

  launch(args: readonly string[], env: Record<string, string> = {}): ChildProcess {
    const child = spawn(process.execPath, [OFFPEAK, ...args], {
      cwd: this.#folder,
      env: { ...cleanEnv(), XDG_STATE_HOME: this.#folder, ...env },
    })
    this.#running.add(child)
    child.once('exit', () => this.#running.delete(child))
    return child
  }

  /** In a process of its own. */
  async spawned(args: readonly string[], env: Record<string, string> = {}): Promise<Ended> {
    return await ended(this.launch(args, env))
  }

  /** In this process, with everything that a process of its own would start. */
  async offpeak(
    args: readonly string[],
    env: Record<string, string> = {},
    more: Partial<ProgramOptions> = {},
  ): Promise<Ended> {
    return await runOffpeak(args, {
      launch: {
        loadConfig: ({ config, ...overrides }) =>
          loadConfig({ file: config, env, cwd: this.#folder, overrides }),
        serve: (config, options) => serve(config, options, env),
        reload: (config) => askToReload(config.data_dir),
        shownConfig: async (config) => shownConfigAsYaml(config),
        keys,
        sim: simServer,
        doctor,
        adminCommands: async () => adminCommands((name) => env[name]),
      },
      access: { baseUrl: env.OFFPEAK_BASE_URL, apiKey: env.OFFPEAK_API_KEY },
      version: version(),
      ...more,
    })
  }

  async start(...args: string[]): Promise<Started> {
    const child = this.launch(args)
    const end = ended(child)
    const ready = await new Promise<string>((resolve, reject) => {
      let said = ''
      child.stdout?.on('data', (block: Buffer) => {
        said += block.toString()
        const line = said.indexOf('\n')
        if (line !== -1) resolve(said.slice(0, line))
      })
      end.then(({ err }) => reject(new Error(`it ended before it was ready: ${err}`)), reject)
    })
    return {
      child,
      ready,
      async end(signal) {
        child.kill(signal)
        return await end
      },
    }
  }

  /** OFFPEAK_BASE_URL and OFFPEAK_API_KEY of a service that was started on this data folder. */
  async access({ ready }: Started, data: string): Promise<Record<string, string>> {
    return {
      OFFPEAK_BASE_URL: ready.replace('offpeak listening on ', ''),
      OFFPEAK_API_KEY: (await readFile(this.at(`${data}/api-key`), 'utf8')).trim(),
    }
  }
}

export async function ended(child: ChildProcess): Promise<Ended> {
  assert.ok(child.stdout !== null && child.stderr !== null)
  const [out, err, [code]] = await Promise.all([text(child.stdout), text(child.stderr), once(child, 'close')])
  return { code: typeof code === 'number' ? code : null, out, err }
}

export function chatLine(custom_id: string, model = 'sim-1'): object {
  const body = { model, messages: [{ role: 'user', content: custom_id }] }
  return { custom_id, method: 'POST', url: '/v1/chat/completions', body }
}
