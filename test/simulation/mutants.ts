// Mutants of the source: plausible bugs that the simulation, or the test that a mutant names, has to find.

export interface Mutant {
  bug: string
  file: string
  /** Occurs in the file exactly once. */
  find: string
  replace: string
  /** One that finds it, which is tried first. */
  seed?: number
  /** The test that must fail, for a mutant outside of the simulated code. */
  test?: string
}

export const MUTANTS: readonly Mutant[] = [
  {
    bug: 'a commit does not look at the epoch',
    file: 'src/store/chunks.ts',
    find: `    .where('epoch', '=', lease.epoch)
    .where('commit_seq', '=', lease.commit_seq)
    .where('state', '=', 'leased')
  if (seal)`,
    replace: `    .where('commit_seq', '=', lease.commit_seq)
    .where('state', '=', 'leased')
  if (seal)`,
  },
  {
    bug: 'lines are settled without their journal',
    file: 'src/results/commit.ts',
    find: '      parts.push({',
    replace: '      if (byte_end < 0) parts.push({',
  },
  {
    bug: 'a transaction commits before its blob is written',
    file: 'src/blobs/sealed.ts',
    find: '    await this.#blobs.put(key, stored)',
    replace: `    const whole: Uint8Array[] = []
    for await (const piece of stored) whole.push(piece)
    this.#blobs.put(key, whole).catch(() => {})`,
  },
  {
    bug: 'lines in a journal are counted again when their chunk is sealed',
    file: 'src/results/open-chunk.ts',
    find: `    const fresh = this.#fresh
    this.#fresh = []`,
    replace: `    const fresh = [...this.#fresh]
    if (this.#unfinished === 0) this.#fresh = []`,
  },
  {
    bug: 'a commit whose answer was lost or late is repeated',
    file: 'src/store/chunks.ts',
    find: `    .where('commit_seq', '=', lease.commit_seq)
    .where('state', '=', 'leased')
  if (seal)`,
    replace: `    .where('state', '=', 'leased')
  if (seal)`,
  },
  {
    bug: 'a chunk that is being requeued goes on sending',
    file: 'src/results/recorder.ts',
    find: '    chunk.parking = true\n',
    replace: '',
  },
  {
    bug: 'a journal counts its lines twice in every total',
    file: 'src/results/commit.ts',
    find: 'const tallies = tally(commit.fresh)',
    replace: "const tallies = tally('journal' in record ? [...commit.fresh, ...commit.fresh] : commit.fresh)",
  },
  {
    bug: 'a statement that the database refuses blocks the commits beside it',
    file: 'src/results/commit-queue.ts',
    find: 'error instanceof StatementRejected && (!alone || ++rejections >= REJECTIONS_MAX)',
    replace: 'error instanceof StatementRejected && alone && ++rejections < 0',
  },
  {
    bug: 'a claim that takes effect late is never detected',
    file: 'src/dispatch/claim/stray-leases.ts',
    find: 'this.#releaseAt = this.#clock.now() + RELEASE_INTERVAL_MS',
    replace: 'this.#releaseAt = null',
    test: 'src/dispatch/claim/claimer.test.ts',
  },
  {
    bug: 'a journal is destroyed while another chunk needs it',
    file: 'src/store/journal-parts.ts',
    find: 'for (const key of await stillNeeded(tx, [...shared])) unneeded = unneeded.filter((one) => one !== key)',
    replace: 'await stillNeeded(tx, [...shared])',
  },
  {
    bug: 'lines are sent after the window has closed',
    file: 'src/dispatch/send/sender.ts',
    find: 'if (at >= chunk.claim.deadline) {',
    replace: 'if (at < 0) {',
  },
  {
    bug: 'a worker claims under an expired session',
    file: 'src/dispatch/claim/claimer.ts',
    find: 'if (!(await lockSession(tx, store.claimSql, id))) return []',
    replace: 'await lockSession(tx, store.claimSql, id)',
  },
  {
    bug: 'a claim whose answer was lost is forgotten',
    file: 'src/dispatch/claim/claimer.ts',
    find: '      // The claim may have taken effect all the same; the next look releases its leases.\n      this.#strays.suspect()\n',
    replace: '',
  },
  {
    bug: 'a batch may move from any status to any other',
    file: 'src/store/batches.ts',
    find: "    .where('status', 'in', statusesBefore(to))\n",
    replace: '',
  },
  {
    bug: 'reservations of other chunks do not count towards a cap',
    file: 'src/ledger/reserve.ts',
    find: 'reserved: spendingOf(others, counter) }',
    replace: 'reserved: 0 * spendingOf(others, counter) }',
  },
  {
    bug: 'the sweep deletes at first sight',
    file: 'src/maintenance/sweep.ts',
    find: 'if (keys.length > 0) this.#suspects = { keys, checkAt: clock.now() + secondLookMs }',
    replace: 'if (secondLookMs > 0) await removeUnknown(this.#ports, keys)',
  },
  {
    bug: 'a stopping worker drops lines that finish while a journal is written',
    file: 'src/results/recorder.ts',
    find: 'await Promise.all([...this.#writing, ...journals, this.#commits.running])\n',
    replace: 'return void (await Promise.all([...this.#writing, ...journals, this.#commits.running]))\n',
  },
  {
    bug: 'blobs of a commit are not written again, however long the commit is refused',
    file: 'src/results/commit-queue.ts',
    find: 'if (now - pending.writtenAt >= blobFreshMs) {',
    replace: 'if (blobFreshMs < 0) {',
  },
  {
    bug: 'a clock that is set back delays the journal',
    file: 'src/results/recorder.ts',
    find: 'return waitedMs < 0 ? Number.POSITIVE_INFINITY : waitedMs',
    replace: 'return waitedMs',
  },
  {
    bug: 'a worker that stops does not requeue its chunks',
    file: 'src/store/leases.ts',
    find: `  await tx.deleteFrom('workers').where('id', '=', worker_id).execute()
  await requeue(tx, worker_id)`,
    replace: `  await tx.deleteFrom('workers').where('id', '=', worker_id).execute()`,
  },
  {
    bug: 'a line that is always throttled is retried for ever',
    file: 'src/dispatch/send/retry-policy.ts',
    find: '      tries.weightedThrottles >= policy.throttled_attempts_max ||',
    replace: '',
  },
  {
    bug: 'a circuit that one batch opened is never probed by a line that failed before',
    file: 'src/dispatch/send/lane.ts',
    find: 'if (!due || (due.avoid === upstream && chooseUpstream(this.#tiers.inUse(now), upstream, now))) return null',
    replace: 'if (due !== this.#dueRetry(-1)) return null',
  },
  {
    bug: 'deleted result files keep their content',
    file: 'src/lifecycle/remove-file.ts',
    find: 'if (await markDeleted(tx, file.id, now)) await markResultsForDeletion(tx, file.batch_id, file.part, now)',
    replace: 'await markDeleted(tx, file.id, now)',
  },
  {
    bug: 'a worker waits for ever for the journals of a chunk that it has lost',
    file: 'src/results/recorder.ts',
    find: "if (!(await this.#isLeased(chunk))) return 'lost'",
    replace: 'await this.#isLeased(chunk)\n        throw error',
  },
  {
    bug: 'a connection to a model server is shared between projects',
    file: 'src/backends/openai/openai-backend.ts',
    find: 'new Exchange(headOf(asked), body, project_id,',
    replace: 'new Exchange(headOf(asked), body, project_id.slice(0, 0),',
    test: 'src/backends/http1/http-pool.test.ts',
  },
  {
    bug: 'a connection is reused at once',
    file: 'src/backends/http1/http-pool.ts',
    find: 'if (idle && (!hasRoom || performance.now() - idle.idleSince >= REST_MS)) {',
    replace: 'if (idle) {',
    test: 'src/backends/http1/http-pool.test.ts',
  },
  {
    bug: 'bytes that arrive on an idle connection are read as the next answer',
    file: 'src/backends/http1/connection.ts',
    find: 'if (exchange === null || this.#unsent || !this.#spoke) {',
    replace:
      'if (exchange === null || this.#unsent || !this.#spoke) return\n    if (bytes.length < length) {',
    test: 'src/backends/http1/http-pool.test.ts',
  },
  {
    bug: 'the cost of finished lines counts only after their commit',
    file: 'src/dispatch/limits/reserved-funds.ts',
    find: '    if (!chunk.reservedUnsent.has(position)) return true\n',
    replace: '    if (position >= 0) return true\n',
  },
  {
    bug: 'lines that a server cannot answer close it to every batch',
    file: 'src/dispatch/send/circuit.ts',
    find: '    if (this.#faults.isAtFault(batch_id)) return false\n',
    replace: '',
    test: 'src/dispatch/send/circuit.test.ts',
  },
  {
    bug: 'an answer confirms no earlier miss',
    file: 'src/dispatch/send/batch-faults.ts',
    find: '      tally.missed += confirmed\n',
    replace: '',
    test: 'src/dispatch/send/batch-faults.test.ts',
  },
  {
    bug: 'a higher tier is used while the lower one answers',
    file: 'src/dispatch/send/tiers.ts',
    find: 'if (since === null || now - since < whenDownMs) break',
    replace: 'if (since !== null && now - since < whenDownMs) break',
  },
  {
    bug: 'hours are an hour late',
    file: 'src/dispatch/send/upstream.ts',
    find: 'hours?.at(now).concurrency_max ?? concurrency_max',
    replace: 'hours?.at(now - 3_600_000).concurrency_max ?? concurrency_max',
  },
  {
    bug: 'lines of batches at risk go to a higher tier though that is switched off',
    file: 'src/dispatch/send/tiers.ts',
    find: 'return this.#tiers.length <= 1 || !this.#spill.whenAtRisk ? [] :',
    replace: 'return this.#tiers.length <= 1 ? [] :',
    seed: 70,
  },
  {
    bug: 'a batch at a batch API is not looked for before it is created again',
    file: 'src/dispatch/remote/remote-intent.ts',
    find: 'const found = await api.find(wanted, intent.signal)',
    replace: 'const found: SeenBatch[] = []',
    seed: 8,
  },
  {
    bug: 'lines at a batch API do not count towards a cap',
    file: 'src/store/remote-batches.ts',
    find: '  await addReservations(tx, reservationRows(lease, keptIndex(idx), reservation, 1))\n',
    replace: '',
    seed: 10,
  },
  {
    bug: 'results at a batch API wait for the end of a pause',
    file: 'src/store/pauses.ts',
    find: "    .where('batch_id', '=', id)\n    .where('remote_batches', '=', 0)\n",
    replace: "    .where('batch_id', '=', id)\n",
    test: 'test/remote-batches.long.test.ts',
  },
  {
    bug: 'lines that a batch API left are sent again whatever limits say by then',
    file: 'src/dispatch/limits/reserved-funds.ts',
    find: '    if (chunk.unchecked.delete(position)) return false\n',
    replace: '',
    seed: 59,
  },
  {
    bug: 'lines are charged to the day on which they end, whichever limits allowed them',
    file: 'src/results/open-chunk.ts',
    find: 'return this.#days.get(position) ?? dayOf(now)',
    replace: 'return dayOf(now)',
    test: 'src/dispatch/limits/limit-gate.test.ts',
  },
  {
    bug: 'a lease is judged by the system time alone',
    file: 'src/dispatch/session.ts',
    find: ' && now.steady - this.#renewedAt.steady < leaseMs',
    replace: '',
    test: 'src/dispatch/session.test.ts',
  },
]
