// Damages journals of open chunks: their bytes are changed, or gone.
import type { SimulatedRun } from './run.ts'
import type { SeededRandom } from './seeded-random.ts'

export class JournalDamage {
  readonly #run: SimulatedRun
  readonly #random: SeededRandom
  /** Those with lines in a journal that was damaged: until these are sent again, their books differ from their journals. */
  readonly batches = new Set<string>()
  readonly #damaged = new Set<string>()

  constructor(run: SimulatedRun, random: SeededRandom) {
    this.#run = run
    this.#random = random
  }

  /** Damages one journal; says so if there is any. */
  async step(): Promise<string | null> {
    const { store, blobs, checker, plans } = this.#run
    const rows = await store.read.selectFrom('journal_parts').select('journal_blob').distinct().execute()
    const keys = rows
      .map(({ journal_blob }) => journal_blob)
      .filter((key) => checker.linesOfJournal.has(key) && !this.#damaged.has(key))
    if (keys.length === 0) return null
    const key = this.#random.pick(keys.sort())
    this.#damaged.add(key)
    const isGone = this.#random.chance(0.5)
    if (isGone) await blobs.delete(key)
    else {
      const pieces: Uint8Array[] = []
      for await (const piece of blobs.read(key)) pieces.push(piece)
      const bytes = Buffer.concat(pieces)
      const at = this.#random.int(0, bytes.length - 1)
      bytes.writeUInt8(bytes.readUInt8(at) ^ 1, at)
      await blobs.put(key, [bytes])
    }
    const names = checker.linesOfJournal.get(key) ?? []
    checker.onDamaged(names)
    for (const name of names) this.batches.add(plans.ask(plans.requestOfLine(name)).batch.id)
    return `a journal of ${names.length} lines is ${isGone ? 'gone' : 'damaged'}`
  }
}
