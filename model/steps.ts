// Reads Steps.tla: what the models allow to become of a row and of a line.
import { readFileSync } from 'node:fs'

export interface ModelStep {
  name: string
  from: string
  to: string
  /** What is added to the epoch of a chunk, and to the number of its last commit. */
  epoch: number
  seq: number
}

const text = readFileSync(new URL('Steps.tla', import.meta.url), 'utf8')

function definition(name: string): string {
  const found = new RegExp(`^${name} ==\\s([^]*?)\\n\\n`, 'm').exec(text)
  if (!found) throw new Error(`Steps.tla does not define ${name}`)
  return found[1]!
}

function stepsOf(name: string): ModelStep[] {
  return Array.from(definition(name).matchAll(/\[(.*?)\]/g), ([, fields = '']) => {
    const value = new Map(Array.from(fields.matchAll(/(\w+) \|-> "?(\w+)"?/g), ([, key, is]) => [key, is]))
    const [step, from, to] = ['name', 'from', 'to'].map((key) => value.get(key))
    if (!step || !from || !to) throw new Error(`Steps.tla: [${fields}] has no name, from or to`)
    return {
      name: step,
      from,
      to,
      epoch: Number(value.get('epoch') ?? 0),
      seq: Number(value.get('seq') ?? 0),
    }
  })
}

export const CHUNK_STEPS: readonly ModelStep[] = stepsOf('ChunkSteps')
export const REMOTE_BATCH_STEPS: readonly ModelStep[] = stepsOf('RemoteBatchSteps')

/** As `FROM → TO`. */
export const LINE_STEPS: ReadonlySet<string> = new Set(
  Array.from(definition('LineSteps').matchAll(/\{"([^"]+)"\} \\X \{([^}]*)\}/g)).flatMap(
    ([, from, to = '']) => Array.from(to.matchAll(/"([^"]+)"/g), ([, one]) => edge(from!, one!)),
  ),
)

export function edge(from: string, to: string): string {
  return `${from} → ${to}`
}
