// Bugs to be planted: what is taken out of the source, and what is put in its place. Each is a mistake that
// somebody might make with the best of intentions.

export interface Mutant {
  bug: string
  file: string
  /** Stands in the file exactly once. */
  take: string
  put: string
  /** The test that is to find it, where it lies below what is simulated. */
  test?: string
}

export const PLANTS: readonly Mutant[] = [
  {
    bug: 'a commit does not look at the epoch',
    file: 'src/store/chunks.ts',
    take: `    .where('epoch', '=', lease.epoch)
    .where('commit_seq', '=', lease.commit_seq)
    .where('state', '=', 'leased')
  if (seal)`,
    put: `    .where('commit_seq', '=', lease.commit_seq)
    .where('state', '=', 'leased')
  if (seal)`,
  },
  {
    bug: 'lines are settled, and their journal is left out',
    file: 'src/results/commit.ts',
    take: '      parts.push({',
    put: '      if (byte_end < 0) parts.push({',
  },
  {
    bug: 'the transaction comes first, its blob later',
    file: 'src/blobs/sealed.ts',
    take: '    await this.#blobs.put(key, stored)',
    put: `    const whole: Uint8Array[] = []
    for await (const piece of stored) whole.push(piece)
    this.#blobs.put(key, whole).catch(() => {})`,
  },
  {
    bug: 'lines in a journal are counted again when their chunk is sealed',
    file: 'src/results/open-chunk.ts',
    take: `    const fresh = this.#fresh
    this.#fresh = []`,
    put: `    const fresh = [...this.#fresh]
    if (this.#unfinished === 0) this.#fresh = []`,
  },
  {
    bug: 'a commit whose answer was lost, or is late, is done again',
    file: 'src/store/chunks.ts',
    take: `    .where('commit_seq', '=', lease.commit_seq)
    .where('state', '=', 'leased')
  if (seal)`,
    put: `    .where('state', '=', 'leased')
  if (seal)`,
  },
  {
    bug: 'a chunk that is being given back goes on sending',
    file: 'src/results/recorder.ts',
    take: '    chunk.parking = true\n',
    put: '',
  },
  {
    bug: 'a journal counts its lines twice, in all books alike',
    file: 'src/results/commit.ts',
    take: 'const tallies = tally(commit.fresh)',
    put: "const tallies = tally('journal' in record ? [...commit.fresh, ...commit.fresh] : commit.fresh)",
  },
  {
    bug: 'what the database refuses holds up everything that is committed with it',
    file: 'src/results/commit-queue.ts',
    take: 'error instanceof StatementRefused && (!alone || ++refusals >= REFUSALS_MAX)',
    put: 'error instanceof StatementRefused && alone && ++refusals < 0',
  },
  {
    bug: 'a claim that takes effect late is never found',
    file: 'src/dispatch/claim/stray-claims.ts',
    take: 'this.#lookAt = this.#clock.now() + AGAIN_MS',
    put: 'this.#lookAt = null',
  },
  {
    bug: 'a journal is destroyed while another chunk needs it',
    file: 'src/store/journal-parts.ts',
    take: 'for (const key of await stillNeeded(tx, [...shared])) unneeded = unneeded.filter((one) => one !== key)',
    put: 'await stillNeeded(tx, [...shared])',
  },
  {
    bug: 'lines are sent after the window has closed',
    file: 'src/dispatch/send/sender.ts',
    take: 'if (at >= chunk.claim.deadline) {',
    put: 'if (at < 0) {',
  },
  {
    bug: 'a worker claims under a session that has ended',
    file: 'src/dispatch/claim/claimer.ts',
    take: 'if (!(await lockSession(tx, store.claimSql, id))) return []',
    put: 'await lockSession(tx, store.claimSql, id)',
  },
  {
    bug: 'a claim whose answer was lost is forgotten',
    file: 'src/dispatch/claim/claimer.ts',
    take: '      // What the database may have leased to this worker all the same is given back at the next look.\n      this.#doubt.raise()\n',
    put: '',
  },
  {
    bug: 'a batch may move from any status to any other',
    file: 'src/store/batches.ts',
    take: "    .where('status', 'in', statusesBefore(to))\n",
    put: '',
  },
  {
    bug: 'what others hold is left out when a cap is judged',
    file: 'src/ledger/reserve.ts',
    take: 'held: spendingOf(others, counter) }',
    put: 'held: 0 * spendingOf(others, counter) }',
  },
  {
    bug: 'the sweep looks only once',
    file: 'src/maintenance/sweep.ts',
    take: 'if (keys.length > 0) this.#suspects = { keys, checkAt: clock.now() + secondLookMs }',
    put: 'if (secondLookMs > 0) await removeUnknown(this.#ports, keys)',
  },
  {
    bug: 'what finishes while a journal is written is forgotten by a worker that stops',
    file: 'src/results/recorder.ts',
    take: 'await Promise.all([...this.#writing, ...journals, this.#commits.running])\n',
    put: 'return void (await Promise.all([...this.#writing, ...journals, this.#commits.running]))\n',
  },
  {
    bug: 'what a commit points to is not written again, however long commits are refused',
    file: 'src/results/commit-queue.ts',
    take: 'if (now - pending.writtenAt >= blobFreshMs) {',
    put: 'if (blobFreshMs < 0) {',
  },
  {
    bug: 'a clock that is set back holds up the journal',
    file: 'src/results/recorder.ts',
    take: 'return waitedMs < 0 ? Number.POSITIVE_INFINITY : waitedMs',
    put: 'return waitedMs',
  },
  {
    bug: 'a worker that stops does not give back what it holds',
    file: 'src/store/leases.ts',
    take: `  await tx.deleteFrom('workers').where('id', '=', worker_id).execute()
  await giveBack(tx, worker_id)`,
    put: `  await tx.deleteFrom('workers').where('id', '=', worker_id).execute()`,
  },
  {
    bug: 'a line that never finds room is tried for ever',
    file: 'src/dispatch/send/retry-policy.ts',
    take: '      tries.weightedThrottles >= policy.throttled_attempts_max ||',
    put: '',
  },
  {
    bug: 'a circuit that one batch opened is never probed by a line that missed before',
    file: 'src/dispatch/send/lane.ts',
    take: 'if (!due || (due.avoid === upstream && this.#choose(upstream))) return null',
    put: 'if (due !== this.#dueRetry(-1)) return null',
  },
  {
    bug: 'removed results leave their content',
    file: 'src/lifecycle/remove-file.ts',
    take: 'if (await markDeleted(tx, file.id, now)) await markResultsForDeletion(tx, file.batch_id, file.part, now)',
    put: 'await markDeleted(tx, file.id, now)',
  },
  {
    bug: 'a worker waits for ever for the journals of a chunk that it has lost',
    file: 'src/results/recorder.ts',
    take: "if (!(await this.#isHeld(chunk))) return 'lost'",
    put: 'await this.#isHeld(chunk)\n        throw error',
  },
  {
    bug: 'a connection to a model server carries the lines of whatever project comes next',
    file: 'src/backends/openai/openai-backend.ts',
    take: 'new Exchange(body, project_id,',
    put: 'new Exchange(body, project_id.slice(0, 0),',
    test: 'src/backends/http1/http-pool.test.ts',
  },
  {
    bug: 'a connection is used again at once',
    file: 'src/backends/http1/http-pool.ts',
    take: 'if (idle && (!hasRoom || performance.now() - idle.idleSince >= REST_MS)) {',
    put: 'if (idle) {',
    test: 'src/backends/http1/http-pool.test.ts',
  },
  {
    bug: 'what comes on an idle connection is left for the next line',
    file: 'src/backends/http1/connection.ts',
    take: 'if (exchange === null || this.#unsent || !this.#spoke) {',
    put: 'if (exchange === null || this.#unsent || !this.#spoke) return\n    if (bytes.length < length) {',
    test: 'src/backends/http1/http-pool.test.ts',
  },
  {
    bug: 'what finished lines cost counts only once it is committed',
    file: 'src/dispatch/limits/reserved-funds.ts',
    take: '    if (!chunk.reservedUnsent.has(position)) return true\n',
    put: '    if (position >= 0) return true\n',
  },
]
