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
    file: 'src/results/chunk-results.ts',
    find: `    this.#fresh = new Fresh()
    this.freshSince = null
    return fresh`,
    replace: `    if (this.#unfinished > 0) this.#fresh = new Fresh()
    this.freshSince = null
    return fresh`,
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
    file: 'src/dispatch/run.ts',
    find: "    this.#phase = 'parking'",
    replace: '',
  },
  {
    bug: 'a commit counts its lines twice in every total',
    file: 'src/results/commit.ts',
    find: '  for (const tally of tallies.all) {',
    replace: '  for (const tally of [...tallies.all, ...tallies.all]) {',
  },
  {
    bug: 'a statement that the database refuses blocks the commits beside it',
    file: 'src/results/commit-queue.ts',
    find: 'error instanceof StatementRejected && (!alone || ++rejections >= REJECTIONS_MAX)',
    replace: 'error instanceof StatementRejected && alone && ++rejections < 0',
  },
  {
    bug: 'a claim that takes effect late is never detected',
    file: 'src/worker/leases.ts',
    find: 'this.#releaseAt = clock.now() + RELEASE_INTERVAL_MS',
    replace: 'this.#releaseAt = null',
    test: 'src/worker/claimer.test.ts',
  },
  {
    bug: 'a journal is destroyed while another chunk needs it',
    file: 'src/store/journal-parts.ts',
    find: 'for (const key of await stillNeeded(tx, [...shared])) unneeded = unneeded.filter((one) => one !== key)',
    replace: 'await stillNeeded(tx, [...shared])',
  },
  {
    bug: 'lines are sent after the window has closed',
    file: 'src/dispatch/sender.ts',
    find: 'if (now >= run.claim.deadline) {',
    replace: 'if (now < 0) {',
  },
  {
    bug: 'a worker claims under an expired session',
    file: 'src/worker/leases.ts',
    find: '(await lockSession(tx, store.claimSql, id)) ? ',
    replace: '(await lockSession(tx, store.claimSql, id)) !== null ? ',
  },
  {
    bug: 'a claim whose answer was lost is forgotten',
    file: 'src/worker/leases.ts',
    find: `      } catch (error) {
        this.suspect()
`,
    replace: `      } catch (error) {
`,
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
    file: 'src/dispatch/retry-policy.ts',
    find: '      tries.weightedThrottles >= policy.throttled_attempts_max ||',
    replace: '',
  },
  {
    bug: 'a circuit that one batch opened is never probed by a line that failed before',
    file: 'src/dispatch/lane.ts',
    find: 'if (isAvoided && chooseServer(this.#route.serversInUse(now), server, now)) return null',
    replace: 'if (isAvoided) return null',
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
    find: "if (!(await this.#isLeased(run))) return 'lost'",
    replace: `await this.#isLeased(run)
        throw error`,
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
    find: `    if (!run.isReserved(position)) return true
`,
    replace: `    if (position >= 0) return true
`,
  },
  {
    bug: 'lines that a server cannot answer close it to every batch',
    file: 'src/dispatch/circuit.ts',
    find: `    if (this.#faults.isAtFault(batch_id)) return false
`,
    replace: '',
    test: 'src/dispatch/circuit.test.ts',
  },
  {
    bug: 'an answer confirms no earlier miss',
    file: 'src/dispatch/batch-faults.ts',
    find: `      tally.missed += confirmed
`,
    replace: '',
    test: 'src/dispatch/batch-faults.test.ts',
  },
  {
    bug: 'a higher tier is used while the lower one answers',
    file: 'src/dispatch/routes.ts',
    find: 'if (since === null || now - since < whenDownMs) break',
    replace: 'if (since !== null && now - since < whenDownMs) break',
  },
  {
    bug: 'hours are an hour late',
    file: 'src/dispatch/upstream.ts',
    find: 'hours.at(now).concurrency_max',
    replace: 'hours.at(now - 3_600_000).concurrency_max',
  },
  {
    bug: 'lines of batches at risk go to a higher tier though that is switched off',
    file: 'src/dispatch/routes.ts',
    find: 'isAtRisk && this.#spill.whenAtRisk ? this.#tiers.length',
    replace: 'isAtRisk ? this.#tiers.length',
  },
  {
    bug: 'a batch at a batch API is not looked for before it is created again',
    file: 'src/remote/creation.ts',
    find: 'const found = await api.find(wanted, creation.signal)',
    replace: 'const found: SeenBatch[] = []',
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
    file: 'src/remote/rows.ts',
    find: `      run.setAllowed(position, false)
`,
    replace: '',
  },
  {
    bug: 'lines are charged to the day on which they end, whichever limits allowed them',
    file: 'src/results/record-line.ts',
    find: 'reservedOn ?? dayOf(now)',
    replace: 'dayOf(now)',
    test: 'src/dispatch/limits/limit-gate.test.ts',
  },
  {
    bug: 'a lease is judged by the system time alone',
    file: 'src/worker/session.ts',
    find: ' && now.steady - this.#renewedAt.steady < leaseMs',
    replace: '',
    test: 'src/worker/session.test.ts',
  },
]
