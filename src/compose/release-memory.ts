// Releases memory while the process is idle. V8 collects garbage by allocated bytes, not by time: an idle process would
// keep the garbage of its start or of its last batch, and as much free heap again.
import { getHeapStatistics, setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { every, systemClock } from '../domain/clock.ts'

const LOOK_MS = 3_000
/** The CPU use below which a process is idle: a collection takes some 50 ms and must not delay calls or lines. */
const IDLE_CPU_SHARE = 0.05
/** The growth of the heap since the last collection, in bytes, from which a collection is worthwhile. */
const GARBAGE_BYTES_MIN = 8 * 1024 * 1024

/** Collects garbage at idle times until the returned function is called. */
export function releaseMemoryWhenIdle(): () => void {
  let collected = 0
  let before = process.cpuUsage()
  return every(systemClock, LOOK_MS, () => {
    const { user, system } = process.cpuUsage(before)
    const isIdle = (user + system) / 1000 < LOOK_MS * IDLE_CPU_SHARE
    if (isIdle && heapBytes() - collected > GARBAGE_BYTES_MIN) {
      collectGarbage()
      collected = heapBytes()
    }
    before = process.cpuUsage()
  })
}

/** The size of the heap in bytes; unlike `process.memoryUsage()`, this opens no file, and so never fails. */
function heapBytes(): number {
  return getHeapStatistics().total_heap_size
}

let exposed: NonNullable<typeof globalThis.gc> | null = null

/** Collects garbage in some 50 ms, by a function of V8 that is not exposed by default. */
function collectGarbage(): void {
  exposed ??= expose()
  exposed({ type: 'major', execution: 'sync', flavor: 'last-resort' })
}

function expose(): NonNullable<typeof globalThis.gc> {
  setFlagsFromString('--expose-gc')
  const collect = runInNewContext('gc') as NonNullable<typeof globalThis.gc>
  setFlagsFromString('--no-expose-gc')
  return collect
}
