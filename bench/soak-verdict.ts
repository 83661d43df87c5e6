// Whether what a process holds is flat: how fast it rose over the last half of the samples, how high it got, and
// whether it closed its handles at the end.
export interface Held {
  rss_mib: number
  heap_mib: number
  handles: number
}

export interface Sample {
  at_s: number
  api: Held
  worker: Held
}

const GOAL_MIB = 300
/** A rise over the last half that garbage collection alone may cause. */
const RISE_MIB_MAX = 40
/** Handles that may be left over when all is quiet: connections kept for later. */
const HANDLES_LEFT_MAX = 8

export interface Verdict {
  rows: Record<string, string | number>[]
  faults: string[]
}

/** `idle` before anything was done, `rest` when all was over. */
export function verdictOf(idle: Sample, samples: readonly Sample[], rest: Sample): Verdict {
  const rows: Verdict['rows'] = []
  const faults: string[] = []
  const late = samples.slice(Math.floor(samples.length / 2))
  for (const name of ['api', 'worker'] as const) {
    const peak_mib = Math.max(...samples.map((sample) => sample[name].rss_mib))
    const rss_rise = rise(late, (sample) => sample[name].rss_mib)
    const heap_rise = rise(late, (sample) => sample[name].heap_mib)
    const handles_left = rest[name].handles - idle[name].handles
    rows.push({
      process: name,
      'peak, MiB': peak_mib,
      'rise of RSS over the last half, MiB': Math.round(rss_rise),
      'rise of the heap, MiB': Math.round(heap_rise),
      'most handles': Math.max(...samples.map((sample) => sample[name].handles)),
      'handles before': idle[name].handles,
      'handles after': rest[name].handles,
    })
    if (peak_mib >= GOAL_MIB) faults.push(`the ${name} took ${peak_mib} MiB; the goal is below ${GOAL_MIB}`)
    if (rss_rise > RISE_MIB_MAX)
      faults.push(`the ${name} grew by ${Math.round(rss_rise)} MiB in the last half`)
    if (heap_rise > RISE_MIB_MAX)
      faults.push(`the heap of the ${name} grew by ${Math.round(heap_rise)} MiB in the last half`)
    if (handles_left > HANDLES_LEFT_MAX)
      faults.push(`the ${name} has ${handles_left} more open handles than before, and nothing to do`)
  }
  return { rows, faults }
}

/** By the line of least squares, from the first of these samples to the last. */
function rise(samples: readonly Sample[], of: (sample: Sample) => number): number {
  const first = samples[0]
  const last = samples.at(-1)
  if (!first || !last || first === last) return 0
  const mean = (values: readonly number[]): number => values.reduce((a, b) => a + b, 0) / values.length
  const at = mean(samples.map((sample) => sample.at_s))
  const value = mean(samples.map(of))
  let over = 0
  let under = 0
  for (const sample of samples) {
    over += (sample.at_s - at) * (of(sample) - value)
    under += (sample.at_s - at) ** 2
  }
  return (over / under) * (last.at_s - first.at_s)
}
