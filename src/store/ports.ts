// The ports that the parts of a process share. Each part declares which of them it takes.
import type { SealedBlobs } from '../blobs/sealed.ts'
import type { Clock } from '../domain/clock.ts'
import type { Log } from '../domain/log.ts'
import type { Store } from './store.ts'

export interface Ports {
  store: Store
  sealed: SealedBlobs
  clock: Clock
  log: Log
}
