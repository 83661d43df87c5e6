// The servers that the configuration of a run names: a model server in one tier or two, and in some runs a batch API for
// the model `n`, alone or before a model server.
import type { Backend } from '../../src/backends/backend.ts'
import type { Spill } from '../../src/dispatch/routes.ts'
import { ModelServer, type Upstream } from '../../src/dispatch/upstream.ts'
import type { Clock } from '../../src/domain/clock.ts'
import type { Log } from '../../src/domain/log.ts'
import { Machine as Budget } from '../../src/engines/machine.ts'
import { BatchApiUpstream } from '../../src/remote/batch-api-upstream.ts'
import type { Machine } from './machine.ts'
import { RemoteBatchApi } from './remote-batch-api.ts'
import { SIM_MODEL, SIM_MODELS, type SimulatedRun } from './run.ts'
import type { SeededRandom } from './seeded-random.ts'
import { simulatedEngine } from './simulated-engine.ts'
import type { UpstreamChanges } from './upstream-changes.ts'

const REMOTE_SPILL = { whenDownMs: 500, whenAtRisk: true }

export interface ServersOptions {
  run: SimulatedRun
  clock: Clock
  random: SeededRandom
  /** Of what engines and batch APIs do, so that it does not change the rest of a run. */
  serversRandom: SeededRandom
  changes: UpstreamChanges
  hasFaults: () => boolean
}

/** The upstreams that one machine has configured. */
export interface MachineServers {
  upstreams: Map<string, Upstream[]>
  readonly spills: ReadonlyMap<string, Spill>
}

export class Servers {
  readonly #options: ServersOptions
  /** What answers the model `n`, in some runs; before a model server, in some of these. */
  readonly #remote: { api: RemoteBatchApi; isAlone: boolean } | null

  constructor(options: ServersOptions) {
    this.#options = options
    const { run, random, serversRandom, clock, hasFaults } = options
    const { checker } = run
    // Where lines cost more than estimated, a batch API has more of them in flight than the bound allows for.
    this.#remote =
      random.chance(0.4) && !run.caps.underestimates
        ? {
            api: new RemoteBatchApi({
              clock,
              random,
              late: serversRandom,
              server: run.server,
              hasFaults,
              onSent: (machine, line) => checker.onHandedOver(machine, line),
              violate: (violation) => checker.violations.push(violation),
              deadlineOf: (line) => checker.deadlineOf(line),
              tally: run.tally,
            }),
            isAlone: random.chance(0.5),
          }
        : null
  }

  /** The GPUs that the engines of a machine share. */
  budget(clock: Clock): Budget {
    const gpus = this.#options.serversRandom.pick([['0'], ['0', '1']])
    return new Budget({ gpus, memory_bytes: 0, run_ms_min: 1_000 }, clock)
  }

  /** What the configuration says just now; `before`: what the machine had. */
  configure(
    machine: Machine,
    gpus: Budget,
    log: Log,
    before: ReadonlyMap<string, Upstream[]> = new Map(),
  ): Map<string, Upstream[]> {
    return new Map(
      SIM_MODELS.map(({ id }) => [id, this.#upstreamsFor(id, machine, gpus, log, before.get(id))]),
    )
  }

  spills(): Map<string, Spill> {
    const { changes } = this.#options
    return new Map(SIM_MODELS.map(({ id }) => [id, this.#hasRemote(id) ? REMOTE_SPILL : changes.spill]))
  }

  /** The model of a batch API is not changed by reloads. */
  #hasRemote(model: string): boolean {
    return this.#remote !== null && model !== SIM_MODEL.id
  }

  #upstreamsFor(
    model: string,
    machine: Machine,
    gpus: Budget,
    log: Log,
    before: Upstream[] | undefined,
  ): Upstream[] {
    const { run, random, serversRandom, changes, hasFaults } = this.#options
    const { server, caps, tally } = run
    const lowest = (backend: Backend): Backend =>
      random.chance(0.3)
        ? simulatedEngine({
            server: backend,
            machine,
            gpus,
            random: serversRandom,
            log,
            tally,
            mayFail: hasFaults,
          })
        : backend
    const places = (): number => (caps.underestimates ? caps.inFlightMax : random.pick([2, 8, 64]))
    if (this.#remote === null || !this.#hasRemote(model))
      return changes.upstreams({
        machine,
        server: () => server.backendFor(machine),
        lowest,
        concurrency_max: places,
      })
    if (before) return before
    const { api } = this.#remote
    const remote = new BatchApiUpstream({
      name: 'batch-api',
      api: api.apiFor(machine),
      concurrency_max: 4,
      modelAlias: null,
    })
    const own = new ModelServer({
      backend: lowest(api.higherTier(server.backendFor(machine), machine, REMOTE_SPILL.whenDownMs, remote)),
      concurrency_max: places(),
      modelAlias: null,
      tier: 1,
    })
    return this.#remote.isAlone ? [remote] : [remote, own]
  }
}
