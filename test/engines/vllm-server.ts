// A vLLM of a test or a benchmark, on a port of this machine.
import assert from 'node:assert/strict'
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { freePort } from '../../src/engines/engine-access.ts'
import { childrenOf, killIfThere, until } from '../support/offpeak-process.ts'
import type { Installed } from './installed-engines.ts'

export class VllmServer {
  readonly url: string
  readonly #spawn: () => ChildProcess
  #process: ChildProcess

  private constructor(url: string, spawn: () => ChildProcess) {
    this.url = url
    this.#spawn = spawn
    this.#process = spawn()
  }

  /** Starts it with these options of `vllm serve`, and waits until it answers. */
  static async start({ server, model }: Installed, options: readonly string[]): Promise<VllmServer> {
    const port = await freePort()
    const args = ['serve', model, '--host', '127.0.0.1', '--port', String(port), ...options]
    const started = new VllmServer(`http://127.0.0.1:${port}`, () =>
      spawn(server, args, { stdio: ['ignore', 'ignore', 'inherit'], detached: true }),
    )
    await started.#answers()
    return started
  }

  /** Starts it again on its port after it was stopped. */
  async restart(): Promise<void> {
    this.#process = this.#spawn()
    await this.#answers()
  }

  async #answers(): Promise<void> {
    await until(async () => {
      assert.equal(this.#process.exitCode, null, 'vLLM runs')
      return await fetch(`${this.url}/health`).then(
        ({ ok }) => ok,
        () => false,
      )
    })
  }

  async ask(body: object, path = '/v1/chat/completions'): Promise<Response> {
    return await fetch(`${this.url}${path}`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify(body),
    })
  }

  /** The value of one of its metrics, without `vllm:`. */
  async metric(name: string): Promise<number> {
    const page = await (await fetch(`${this.url}/metrics`)).text()
    return Number(new RegExp(`^vllm:${name}\\{[^}]*\\} (\\S+)$`, 'm').exec(page)?.[1])
  }

  /** Sends a signal to all processes of the server but the one that listens. */
  signal(signal: NodeJS.Signals): void {
    for (const pid of descendantsOf(this.#process.pid!)) killIfThere(pid, signal)
  }

  /** Forgets the beginnings that it has seen. */
  async resetPrefixCache(): Promise<void> {
    const { ok } = await fetch(`${this.url}/reset_prefix_cache`, { method: 'POST' })
    assert.ok(ok, 'VLLM_SERVER_DEV_MODE is set')
  }

  /** Kills all of it. */
  async stop(): Promise<void> {
    if (this.#process.exitCode !== null || this.#process.signalCode !== null) return
    const ended = once(this.#process, 'exit')
    killIfThere(-this.#process.pid!)
    await ended
  }
}

export function descendantsOf(pid: number): number[] {
  const children = childrenOf({ pid })
  return [...children, ...children.flatMap(descendantsOf)]
}
