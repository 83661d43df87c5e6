// A process of the API with faults: it ends batches and does the maintenance while no worker runs.
import type { MasterKey } from '../../src/blobs/master-key.ts'
import { sealBlobs } from '../../src/blobs/sealed.ts'
import { ApiMaintenance } from '../../src/compose/api-maintenance.ts'
import type { Log } from '../../src/domain/log.ts'
import { Session } from '../../src/leases/leases.ts'
import type { Machine } from './machine.ts'
import { RULES, SEALING, SIM_MODELS, SIM_PLAN } from './run.ts'
import { BLOB_FRESH_MS } from './simulated-worker.ts'

const LEASE_MS = 2_000

export interface ApiProcess {
  machine: Machine
  stop: () => Promise<void>
}

export function startApi(machine: Machine, master: MasterKey, log: Log): ApiProcess {
  const { clock } = machine
  const store = { ...machine.store, clock }
  const session = new Session({
    ...{ store, clock, log },
    leaseMs: LEASE_MS,
    role: 'api',
    onRenewed: () => {},
    onLost: () => {},
  })
  const maintenance = new ApiMaintenance({
    ...{ store, log },
    sealed: sealBlobs(machine.blobs, master, SEALING),
    models: new Map(SIM_MODELS.map((model) => [model.id, model])),
    plans: new Map([[SIM_PLAN.name, SIM_PLAN]]),
    rules: RULES,
    session,
    onEnded: () => {},
    blobFreshMs: BLOB_FRESH_MS,
  })
  // A process that cannot open its session exits.
  session.open().then(
    () => maintenance.start(),
    () => machine.crash(),
  )
  return {
    machine,
    async stop() {
      await maintenance.stop()
      await session.close()
    },
  }
}
