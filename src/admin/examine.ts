// Examines the stores without changing them: whether the database is intact, whether every blob that it names exists
// and can be decrypted with the master key, and whether there are orphans. Each finding names the affected content and
// the fix.
import { BlobDamaged, BlobMissing, type Blobs } from '../blobs/blobs.ts'
import type { SealedBlobs } from '../blobs/sealed.ts'
import { masterKeyIdOf } from '../blobs/wrap-key.ts'
import { counted } from '../domain/text.ts'
import { ORPHAN_AGE_MS, unknownBlobs } from '../maintenance/sweep.ts'
import { type BlobUse, blobPages, danglingUses, readBlobRow, usesOfBlob } from '../store/blobs.ts'
import type { BlobRow } from '../store/schema.ts'
import { DatabaseFailure, type Ports } from '../store/store.ts'

const ROWS_AT_ONCE = 500
/** The limit of damaged blobs that are listed; further ones are counted. */
const DANGLING_MAX = 1_000
/** The number of blobs that a quick examination opens. */
const SAMPLE = 20

export interface Finding {
  /** The severity. `damage` needs a backup, `not set` the right key; `note` explains itself. */
  level: 'damage' | 'not set' | 'note'
  about: 'database' | 'master_key' | 'blobs' | 'blob' | 'orphans'
  /** The key of the blob in question. */
  blob?: string
  /** The problem and its fix, as sentences. */
  problem: string
  advice: string
  /** The content that is unreadable because of the problem: `batch_… (output)`. */
  affects: readonly string[]
}

export interface Examined {
  blobs: number
  /** The number of blobs that were opened and found intact, and their bytes of plaintext. */
  opened: number
  bytes_opened: number
}

interface ExamineDeps extends Pick<Ports, 'store' | 'clock'> {
  blobs: Blobs
  /** Opens blobs; null without a master key, when only their existence can be checked. */
  opener: { sealed: SealedBlobs; master_key_id: string } | null
}

/** Examines the stores. `quick`: only that each blob exists and a few can be opened; otherwise every byte is read. */
export async function examine(
  deps: ExamineDeps,
  { quick, tell }: { quick: boolean; tell: (finding: Finding) => void },
): Promise<Examined> {
  const problems = await deps.store.check()
  for (const problem of problems) {
    const advice = 'Stop the service and restore the database from a backup.'
    tell({ level: 'damage', about: 'database', problem, advice, affects: [] })
  }
  const examined: Examined = { blobs: 0, opened: 0, bytes_opened: 0 }
  try {
    await examineDangling(deps, tell)
    await examineBlobs(deps, quick, tell, examined)
    await examineOrphans(deps, tell)
  } catch (error) {
    // A damaged database may not return the keys of its blobs.
    if (problems.length === 0 || !(error instanceof DatabaseFailure)) throw error
  }
  return examined
}

async function examineDangling({ store }: ExamineDeps, tell: (finding: Finding) => void): Promise<void> {
  for (const use of await danglingUses(store.read, DANGLING_MAX))
    tell({
      level: 'damage',
      about: 'blob',
      blob: use.blob,
      problem: 'the database refers to it, but has no row for it, and so no key',
      advice: 'Restore the database from a backup that has it.',
      affects: [shown(use)],
    })
}

/** Examines the blobs and counts them in `examined`. */
async function examineBlobs(
  { store, blobs, opener }: ExamineDeps,
  quick: boolean,
  tell: (finding: Finding) => void,
  examined: Examined,
): Promise<void> {
  /** The number of blobs that only another master key opens, by that key's ID. */
  const strange = new Map<string, number>()
  for await (const rows of blobPages(store.read, ROWS_AT_ONCE))
    for (const row of rows) {
      examined.blobs++
      const sealer = masterKeyIdOf(row.wrapped_key)
      const fits = sealer === null || sealer === opener?.master_key_id
      if (sealer !== null && !fits) strange.set(sealer, (strange.get(sealer) ?? 0) + 1)
      const sealed = fits && !(quick && examined.opened >= SAMPLE) ? opener?.sealed : undefined
      const found = await problemOf(row, blobs, sealed)
      if (found === null) {
        if (!sealed) continue
        examined.opened++
        examined.bytes_opened += row.bytes
      } else if (await readBlobRow(store.read, row.key)) {
        // A blob without uses was removed by a running service.
        const uses = await usesOfBlob(store.read, row.key)
        const advice = adviceFor(uses)
        const affects = uses.map(shown)
        tell({ level: 'damage', about: 'blob', blob: row.key, problem: found, advice, affects })
      }
    }
  for (const [id, count] of strange) tell(strangeKey(id, count, opener?.master_key_id ?? null))
}

/** The advice for a damaged blob; indexes and journals are rebuilt when they are needed. */
function adviceFor(uses: readonly BlobUse[]): string {
  const isOnly = (part: BlobUse['part']): boolean => uses.length > 0 && uses.every((use) => use.part === part)
  if (isOnly('index')) return 'Nothing has to be done: it is made again from the content of the file.'
  if (isOnly('journal'))
    return 'Nothing has to be done: the charges of its lines are reversed, and the lines are run again.'
  return 'Restore this blob from a backup of the blob store; nothing else can bring it back.'
}

/** The problem of a blob that `sealed` should open; without `sealed`, only whether the blob exists. */
async function problemOf(
  row: BlobRow,
  blobs: Blobs,
  sealed: SealedBlobs | undefined,
): Promise<string | null> {
  try {
    if (!sealed) await blobs.size(row.key)
    else for await (const _ of sealed.read(row.project_id, row));
    return null
  } catch (error) {
    if (error instanceof BlobMissing) return 'it is missing'
    if (error instanceof BlobDamaged) return error.message.replace(`blob ${row.key} is damaged: `, '')
    throw error
  }
}

function strangeKey(id: string, count: number, ours: string | null): Finding {
  const have = ours === null ? 'there is none' : `the one at hand is ${ours}`
  return {
    level: 'not set',
    about: 'master_key',
    problem: `${counted(count, 'blob opens', 'blobs open')} under master key ${id} alone, and ${have}`,
    advice: 'Bring that key back: restore DIR/master-key, or set OFFPEAK_MASTER_KEY to what it held.',
    affects: [],
  }
}

async function examineOrphans(
  { store, blobs, clock }: ExamineDeps,
  tell: (finding: Finding) => void,
): Promise<void> {
  let count = 0
  let bytes = 0
  // A younger blob may belong to uncommitted work.
  const before = clock.now() - ORPHAN_AGE_MS
  for await (const blob of unknownBlobs(store.read, blobs.list(''), { before })) {
    count++
    bytes += blob.bytes
  }
  if (count === 0) return
  tell({
    level: 'note',
    about: 'orphans',
    problem: `${counted(count, 'blob belongs', 'blobs belong')} to nothing (${counted(bytes, 'byte')}): a crash left them`,
    advice: 'Any running worker removes them within two hours.',
    affects: [],
  })
}

function shown({ owner, part }: BlobUse): string {
  return `${owner} (${part})`
}
