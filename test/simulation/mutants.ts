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
    find: '  return { ...leased(lease), commit_seq: lease.commit_seq }',
    replace: `  const { epoch: _, ...others } = leased(lease)
  return { ...others, commit_seq: lease.commit_seq }`,
    seed: 32,
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
    find: `    const fresh = this.#fresh
    this.#fresh = new Fresh()`,
    replace: `    const fresh = this.#fresh
    if (this.#unfinished === 0) this.#fresh = new Fresh()`,
  },
  {
    bug: 'a commit whose answer was lost or late is repeated',
    file: 'src/store/chunks.ts',
    find: '  return { ...leased(lease), commit_seq: lease.commit_seq }',
    replace: '  return leased(lease)',
    seed: 11,
  },
  {
    bug: 'a chunk that is being requeued goes on sending',
    file: 'src/worker/worker.ts',
    find: '    run.park()\n',
    replace: '',
  },
  {
    bug: 'a journal counts its lines twice in every total',
    file: 'src/results/commit.ts',
    find: 'const tallies = fresh.tallies.all',
    replace:
      "const tallies = 'journal' in record ? [...fresh.tallies.all, ...fresh.tallies.all] : fresh.tallies.all",
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
    file: 'src/store/chunks.ts',
    find: 'for (const key of await stillNeeded(tx, [...shared])) unneeded = unneeded.filter((one) => one !== key)',
    replace: 'await stillNeeded(tx, [...shared])',
  },
  {
    bug: 'lines are sent after the window has closed',
    file: 'src/dispatch/sender.ts',
    find: 'if (now >= run.claim.deadline) {',
    replace: 'if (now < 0) {',
    test: 'src/dispatch/lines.test.ts',
  },
  {
    bug: 'a worker claims under an expired session',
    file: 'src/worker/leases.ts',
    find: '(await lockSession(tx, store.claimSql, id)) ? await choose(tx, id) : undefined',
    replace: '(await lockSession(tx, store.claimSql, id)) || true ? await choose(tx, id) : undefined',
  },
  {
    bug: 'a claim whose answer was lost is forgotten',
    file: 'src/worker/leases.ts',
    find: `        this.suspect()
        throw error`,
    replace: '        throw error',
    seed: 17,
  },
  {
    bug: 'a batch may move from any status to any other',
    file: 'src/store/batches.ts',
    find: '{ id, status: statusesBefore(to) }',
    replace: '{ id }',
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
    find: 'if (keys.length > 0) this.#suspects = { keys, checkAt: steady.now() + secondLookMs }',
    replace: 'if (secondLookMs > 0) await removeUnknown(this.#ports, keys)',
    test: 'src/maintenance/sweep.test.ts',
  },
  {
    bug: 'a stopping worker drops lines that finish while a journal is written',
    file: 'src/results/recorder.ts',
    find: 'await Promise.all([...this.#writing, ...journals, this.#commits.running])\n',
    replace: 'return void (await Promise.all([...this.#writing, ...journals, this.#commits.running]))\n',
    test: 'src/results/recorder.test.ts',
  },
  {
    bug: 'blobs of a commit are not written again, however long the commit is refused',
    file: 'src/results/commit-queue.ts',
    find: 'if (now - pending.writtenAt >= this.#options.blobFreshMs) {',
    replace: 'if (this.#options.blobFreshMs < 0) {',
    test: 'src/results/recorder.test.ts',
  },
  {
    bug: 'a clock that is set back delays the journal',
    file: 'src/results/recorder.ts',
    find: 'return waitedMs < 0 ? Number.POSITIVE_INFINITY : waitedMs',
    replace: 'return waitedMs',
    seed: 52,
  },
  {
    bug: 'a worker that stops does not requeue its chunks',
    file: 'src/store/workers.ts',
    find: `  await deleteRows(tx, 'workers', { id: worker_id }).execute()
  await requeue(tx, worker_id)`,
    replace: `  await deleteRows(tx, 'workers', { id: worker_id }).execute()`,
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
    find: `    const again = this.#nextAgain()
    if (again === null) return null
    const isAvoided`,
    replace: `    const again = null as Entry | null
    if (again === null) return null
    const isAvoided`,
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
    replace: 'await this.#isLeased(run)\n        throw error',
    seed: 18,
  },
  {
    bug: 'a connection to a model server is shared between projects',
    file: 'src/backends/openai/openai-backend.ts',
    find: 'new Exchange(headFor(call), body, project_id,',
    replace: 'new Exchange(headFor(call), body, project_id.slice(0, 0),',
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
    find: '    if (!run.isReserved(position)) return true\n',
    replace: '    if (position >= 0) return true\n',
    test: 'src/dispatch/lines.test.ts',
  },
  {
    bug: 'lines that a server cannot answer close it to every batch',
    file: 'src/dispatch/circuit.ts',
    find: '    if (this.#faults.isAtFault(batch_id)) return false\n',
    replace: '',
    test: 'src/dispatch/circuit.test.ts',
  },
  {
    bug: 'an answer confirms no earlier miss',
    file: 'src/dispatch/batch-faults.ts',
    find: '      tally.missed += confirmed\n',
    replace: '',
    test: 'src/dispatch/batch-faults.test.ts',
  },
  {
    bug: 'a higher tier is used while the lower one answers',
    file: 'src/dispatch/routes.ts',
    find: 'if (since === null || now - since < whenDownMs) break',
    replace: 'if (since !== null && now - since < whenDownMs) break',
    seed: 8,
  },
  {
    bug: 'hours are an hour late',
    file: 'src/dispatch/upstream.ts',
    find: 'hours.at(now).concurrency_max ?? concurrency_max',
    replace: 'hours.at(now - 3_600_000).concurrency_max ?? concurrency_max',
    seed: 31,
  },
  {
    bug: 'lines of batches at risk go to a higher tier though that is switched off',
    file: 'src/dispatch/routes.ts',
    find: 'if (this.#tiers.length <= 1 || !this.#spill.whenAtRisk) return []',
    replace: 'if (this.#tiers.length <= 1) return []',
    seed: 42,
  },
  {
    bug: 'a batch at a batch API is not looked for before it is created again',
    file: 'src/remote/creation.ts',
    find: 'const found = await api.find(wantedBatch(store, row), creation.signal)',
    replace: 'const found: SeenBatch[] = await Promise.resolve([])',
    seed: 7,
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
    find: '{ batch_id: id, remote_batches: 0 }',
    replace: '{ batch_id: id }',
    test: 'src/remote/rows.test.ts',
  },
  {
    bug: 'lines that a batch API left are sent again whatever limits say by then',
    file: 'src/remote/rows.ts',
    find: '      run.setAllowed(position, false)\n',
    replace: '',
    test: 'src/remote/rows.test.ts',
  },
  {
    bug: 'lines are charged to the day on which they end, whichever limits allowed them',
    file: 'src/results/record-line.ts',
    find: 'scratch.day = reservedOn ?? dayOf(now)',
    replace: 'scratch.day = dayOf(now)',
    test: 'src/dispatch/limits/limit-gate.test.ts',
  },
  {
    bug: 'a lease is judged by the system time alone',
    file: 'src/worker/leases.ts',
    find: ' && now.steady - this.#renewedAt.steady < leaseMs',
    replace: '',
    test: 'src/worker/leases.test.ts',
  },
  // Where the ways of answering a line meet.
  {
    bug: 'identical requests of two batches share their answer',
    file: 'src/dispatch/duplicates.ts',
    find: 'return request === null ? null : ',
    replace: 'return request !== null ? request : ',
    seed: 15,
  },
  {
    bug: 'lines that came back from a batch API are not reserved again',
    file: 'src/remote/rows.ts',
    find: 'funds.setReserved(run, position, true)',
    replace: 'funds.setReserved(run, position, false)',
    test: 'src/remote/rows.test.ts',
  },
  {
    bug: 'a batch that was given up is never cancelled at its batch API',
    file: 'src/remote/poller.ts',
    find: '    if (remote_id !== null) await api.cancel(remote_id, signal)\n',
    replace: '',
    test: 'src/remote/poller.test.ts',
  },
  {
    bug: 'lines that a batch API left spill where spilling is off',
    file: 'src/dispatch/routes.ts',
    find: 'const isOpen = whenDownMs !== null || whenAtRisk',
    replace: 'const isOpen = whenDownMs !== null || whenAtRisk || true',
    test: 'src/dispatch/routes.test.ts',
  },
  {
    bug: 'the lane of a model that is back does not count lines that wait from before',
    file: 'src/dispatch/lines.ts',
    find: '    this.#recount(runs)\n',
    replace: '',
    test: 'src/dispatch/lines.test.ts',
  },
  {
    bug: 'the end of a run closes another one of the same chunk',
    file: 'src/worker/worker.ts',
    find: '=== run) this.#runs.delete(',
    replace: '!== null) this.#runs.delete(',
    test: 'src/worker/worker.test.ts',
  },
  {
    bug: 'a chunk whose lease could not be ended stays leased',
    file: 'src/worker/leases.ts',
    find: "if (how !== 'accepted') this.suspect()",
    replace: 'void how',
    test: 'src/worker/worker.test.ts',
  },
  {
    bug: 'lines that follow an identical one count its tokens',
    file: 'src/results/record-line.ts',
    find: '    answer.usage_place,\n    NO_USAGE,\n',
    replace: '    answer.usage_place,\n    answer.usage ?? NO_USAGE,\n',
    test: 'src/dispatch/lines.test.ts',
  },
  {
    bug: 'lines go on following a line whose chunk is gone',
    file: 'src/dispatch/lines.ts',
    find: "    this.#placeEach(followers, 'the line that it followed is gone')\n",
    replace: '',
    test: 'src/dispatch/lines.test.ts',
  },
  {
    bug: 'a line that is taken back for a check of limits keeps the permission to be sent',
    file: 'src/dispatch/lines.ts',
    find: '    for (const position of positions) run.setAllowed(position, false)\n',
    replace: '',
    test: 'src/dispatch/lines.test.ts',
  },
  {
    bug: 'paused lines are placed as others are',
    file: 'src/dispatch/lines.ts',
    find: '    if (this.#options.isPaused(run, model)) return PAUSED\n',
    replace: '',
    test: 'src/dispatch/lines.test.ts',
  },
  {
    bug: 'a line is sent again before its wait is over',
    file: 'src/dispatch/lines.ts',
    find: '    if (run.dueOf(position) > now) return RETRYING\n',
    replace: '',
    test: 'src/dispatch/lines.test.ts',
  },
  {
    bug: 'the answer of a line whose chunk was lost is shared with the line itself',
    file: 'src/dispatch/duplicates.ts',
    find: 'return from.request_id === run.sharedFrom(position).request_id',
    replace: "return from.request_id === ''",
    test: 'src/dispatch/lines.test.ts',
  },
  {
    bug: 'while a batch API has an identical line, others are sent one by one',
    file: 'src/dispatch/duplicates.ts',
    find: '      this.#setAside(group)\n      group = undefined',
    replace: '      return SEND',
    test: 'src/dispatch/lines.test.ts',
  },
  {
    bug: 'a batch that may still come into being at a batch API is created again at once',
    file: 'src/remote/creation.ts',
    find: 'if (ageMs < api.settleMs) {',
    replace: 'if (ageMs < 0) {',
    test: 'src/remote/creation.test.ts',
  },
  {
    bug: 'a batch that may be one of several is given up like one that does not answer',
    file: 'src/remote/creation.ts',
    find: 'error instanceof UndecidedBatch && run.stopped === null',
    replace: 'false',
    test: 'src/remote/creation.test.ts',
  },
  {
    bug: 'the second of two batches that a batch API made of one call goes on',
    file: 'src/remote/creation.ts',
    find: `      log.warn({ remote_batch: id, first: first?.id }, TWICE)
      await api.cancel(id, creation.signal)`,
    replace: '      log.warn({ remote_batch: id, first: first?.id }, TWICE)',
    test: 'src/remote/creation.test.ts',
  },
  {
    bug: 'the closer ends lines that a batch API has answered',
    file: 'src/store/chunk-claims.ts',
    find: "(chunks.remote_batches = 0 AND (chunks.state = 'ready'",
    replace: "((chunks.state = 'ready'",
    test: 'src/worker/remote-batches.test.ts',
  },
  {
    bug: 'a chunk is parked before the batch API has what it was told to',
    file: 'src/dispatch/run.ts',
    find: 'return this.#counts[IN_FLIGHT] === 0 && this.remoteWork === 0',
    replace: 'return this.#counts[IN_FLIGHT] === 0',
    seed: 7,
  },
  {
    bug: 'what lines at a batch API have reserved is kept when all of them have ended',
    file: 'src/store/remote-batches.ts',
    find: '  if (!others) await releaseKept(tx, chunkKey)\n',
    replace: '',
    seed: 7,
  },
  {
    bug: 'an end at a batch API that comes while its chunk is being parked wakes nobody',
    file: 'src/worker/worker.ts',
    find: '      if (run.count(REMOTE) > 0) await wakeIfEnded(tx, run.claim)\n',
    replace: '',
    seed: 50,
  },
  {
    bug: 'an API process keeps what it has leased by a claim whose answer was lost',
    file: 'src/compose/api-maintenance.ts',
    find: '    await this.#leases.releaseStrays()\n',
    replace: '',
    test: 'test/batches/without-worker.test.ts',
  },
  {
    bug: 'a line that follows another shares its own answer that no commit has counted',
    file: 'src/dispatch/lines.ts',
    find: 'isOwn(one.run, one.position, answer)',
    replace: 'one.run === null',
    seed: 1_410_109,
  },
  {
    bug: 'a pause that is seen while a chunk is opened does not hold for the open ones',
    file: 'src/dispatch/pauses.ts',
    find: '(this.#batches.get(id) ?? isPaused) !== isPaused',
    replace: 'false',
    seed: 1_413_743,
  },
  {
    bug: 'a line that is asked again is billed for its last answer alone',
    file: 'src/dispatch/lines.ts',
    find: '    if (!kept) return NO_EARLIER\n',
    replace: '    if (!kept || kept.asked > 0) return NO_EARLIER\n',
  },
  {
    bug: 'a line is asked again once more than its batch allows',
    file: 'src/dispatch/lines.ts',
    find: 'asked >= run.reask.max ||',
    replace: 'asked > run.reask.max ||',
  },
  {
    bug: 'a chunk is parked with an answer that no commit has counted, of a line that is asked again',
    file: 'src/worker/worker.ts',
    find: '    if (this.#lines.takeKept(run)) return\n',
    replace: '',
    test: 'src/worker/worker.test.ts',
  },
  {
    bug: 'a line that is in flight when limits are checked is asked again, with room or without',
    file: 'src/dispatch/lines.ts',
    find: '    if (run.reask !== null) for (const position of run.positions(IN_FLIGHT)) run.setLast(position)\n',
    replace: '',
    test: 'src/dispatch/reasks.test.ts',
  },
  {
    bug: 'the messages that a repair adds to a prompt do not count when its usage is bounded',
    file: 'src/dispatch/lines.ts',
    find: 'more_bytes: messages?.length ?? 0',
    replace: 'more_bytes: 0',
    test: 'src/dispatch/reasks.test.ts',
  },
  {
    bug: 'an answer that waits for its check is billed at the prices of the time at which its line ends',
    file: 'src/dispatch/lines.ts',
    find: '#end(run, position, answered, attempt, checked.by)',
    replace: '#end(run, position, answered, attempt)',
    test: 'src/dispatch/reasks.test.ts',
  },
  {
    bug: 'an account of Anthropic without money blames each line',
    file: 'src/backends/verdict/classify.ts',
    find: 'if (isOverQuota || saysNoFunds(error.message))',
    replace: 'if (isOverQuota)',
    test: 'src/backends/verdict/classify.test.ts',
  },
  {
    bug: 'lines that cannot run any more are sent when a batch API leaves them',
    file: 'src/dispatch/lines.ts',
    find: 'if (fault !== null || model === null || !lane) {',
    replace: 'if (model === null || !lane) {',
    test: 'src/dispatch/lines.test.ts',
  },
]
