// Groups the identical requests of a batch, which are sent once. While one line (the leader) is being answered, the
// others follow it and end with its outcome. Answers of earlier leaders are remembered within the worker's memory of
// answers. An answer that
// this worker has forgotten or never had is looked up in the stores (results/earlier-answers.ts) before the request is sent;
// the line that looks it up leads its group meanwhile.
//
// Groups have entries; the states of the lines are in their runs, and lines.ts moves them.
import type { ResponseMemory } from '../../backends/response-memory.ts'
import { requestHash } from '../../jsonl/first-lines.ts'
import type { Answered, SharedAnswer } from '../../results/record-line.ts'
import { FOLLOWING, REMOTE, UNSUBMITTED } from '../line-state.ts'
import type { Run } from '../run.ts'
import type { Entry } from '../senders/fair-queue.ts'

/** The largest answer that is remembered. */
const ANSWER_BYTES_MAX = 4 * 1024 * 1024
/** The bytes of a remembered answer beside its own content. */
const OVERHEAD_BYTES = 1024

interface Group {
  key: string
  leader: Entry
  /** The followers of the leader, by run; some may no longer follow. */
  followers: Map<Run, Set<number>>
  /** Aborts the search for an earlier answer, which is done once. */
  search: AbortController | null
}

/** The handling of a line that is next in its lane; a search for its answer runs until the signal aborts. */
type DuplicateTurn =
  | { kind: 'send' | 'follow' }
  | { kind: 'search'; signal: AbortSignal }
  | { kind: 'share'; answer: SharedAnswer }

const SEND: DuplicateTurn = { kind: 'send' }
const FOLLOW: DuplicateTurn = { kind: 'follow' }
const NONE: readonly Entry[] = []

export class Duplicates {
  /** Requests that are being answered, or wait for another attempt. */
  readonly #groups = new Map<string, Group>()
  /** Groups by run and key whose leader is at a batch API, while a line of another run leads a group of its own. */
  readonly #aside = new WeakMap<Run, Map<string, Group>>()
  readonly #led = new WeakMap<Run, Map<number, Group>>()
  /** Remembered answers by key, in the order of their last use. */
  readonly #answers = new Map<string, SharedAnswer>()
  readonly #memory: Pick<ResponseMemory, 'hold' | 'free'>

  constructor(memory: Pick<ResponseMemory, 'hold' | 'free'>) {
    this.#memory = memory
  }

  /** Decides about the next line of a lane. `isStored`: whether an earlier line may have a stored answer. */
  turn(run: Run, position: number, isStored: () => boolean): DuplicateTurn {
    if (run.batch.dedupe === null) return SEND
    const key = requestKey(run, position)
    if (key === null) return SEND
    const aside = this.#aside.get(run)?.get(key)
    if (aside && aside.leader.position !== position) return follow(aside, run, [position])
    let group = this.#groups.get(key)
    if (group && group.leader.run !== run && isAtBatchApi(group.leader)) {
      // What a batch API has is shared within its chunk alone: others would wait for hours.
      this.#setAside(group)
      group = undefined
    }
    if (aside) {
      // The batch API has left it unfinished.
      this.#aside.get(run)?.delete(key)
      if (!group) {
        this.#groups.set(key, aside)
        return SEND
      }
      this.#led.get(run)?.delete(position)
      for (const [follower, positions] of aside.followers) follow(group, follower, positions)
    }
    if (group && (group.leader.run !== run || group.leader.position !== position))
      return follow(group, run, [position])
    // A line that was tried before its chunk was parked leads already; the first line may have been answered meanwhile.
    const answer = group ? undefined : this.#answers.get(key)
    if (answer) {
      if (!isOwn(run, position, answer)) {
        this.#remember(key, answer)
        return { kind: 'share', answer }
      }
      this.#forget(key)
    }
    group ??= this.#lead(key, run, position)
    if (!isStored()) return SEND
    group.search = new AbortController()
    return { kind: 'search', signal: group.search.signal }
  }

  /** Makes identical lines of the chunk follow a line at a batch API, or one whose attempts count for all. */
  lead(run: Run, position: number): void {
    const key = run.batch.dedupe === null ? null : requestKey(run, position)
    if (key === null || this.#aside.get(run)?.has(key)) return
    const group = this.#groups.get(key)
    if (group?.leader.run === run) return
    const own = this.#lead(key, run, position)
    if (!group) return
    this.#setAside(own)
    this.#groups.set(key, group)
  }

  #setAside(group: Group): void {
    const { key, leader } = group
    this.#groups.delete(key)
    const own = this.#aside.get(leader.run) ?? new Map<string, Group>()
    this.#aside.set(leader.run, own.set(key, group))
  }

  #lead(key: string, run: Run, position: number): Group {
    const group: Group = { key, leader: { run, position }, followers: new Map(), search: null }
    this.#groups.set(key, group)
    const led = this.#led.get(run) ?? new Map<number, Group>()
    this.#led.set(run, led.set(position, group))
    return group
  }

  /** Remembers the answer of a line; returns the lines that share it. */
  answered(run: Run, position: number, { body, answer }: Answered, cost_nanos: number): readonly Entry[] {
    const group = this.#led.get(run)?.get(position)
    const key = group?.key ?? requestKey(run, position)
    if (key !== null && !this.#answers.has(key) && body.length <= ANSWER_BYTES_MAX)
      // The bytes of an answer belong to the connection that it came by.
      this.#remember(key, { body: Buffer.from(body), answer, cost_nanos, from: run.sharedFrom(position) })
    return this.dissolve(run, position)
  }

  /** Remembers an earlier answer to the line's request; returns the lines that share it. */
  found(run: Run, position: number, answer: SharedAnswer): readonly Entry[] {
    const key = requestKey(run, position)
    if (key !== null) this.#remember(key, answer)
    return this.dissolve(run, position)
  }

  #remember(key: string, answer: SharedAnswer): void {
    this.#forget(key)
    while (!this.#memory.hold('remembered', answer.body.length + OVERHEAD_BYTES)) {
      const [oldest] = this.#answers.keys()
      if (oldest === undefined) return
      this.#forget(oldest)
    }
    this.#answers.set(key, answer)
  }

  #forget(key: string): void {
    const answer = this.#answers.get(key)
    if (!answer) return
    this.#answers.delete(key)
    this.#memory.free('remembered', answer.body.length + OVERHEAD_BYTES)
  }

  /** Ends the lead of a line; returns its remaining followers. */
  dissolve(run: Run, position: number): readonly Entry[] {
    const led = this.#led.get(run)
    const group = led?.get(position)
    if (!led || !group) return NONE
    led.delete(position)
    if (this.#groups.get(group.key) === group) this.#groups.delete(group.key)
    if (this.#aside.get(run)?.get(group.key) === group) this.#aside.get(run)?.delete(group.key)
    group.search?.abort()
    return [...group.followers].flatMap(([follower, positions]) => following(follower, positions))
  }

  /** Returns the followers in other runs of a line that may wait for long. Followers in its own run stay. */
  releaseOthers(run: Run, position: number): readonly Entry[] {
    const group = this.#led.get(run)?.get(position)
    if (!group) return NONE
    const found: Entry[] = []
    for (const [follower, positions] of group.followers) {
      if (follower === run) continue
      group.followers.delete(follower)
      found.push(...following(follower, positions))
    }
    return found
  }

  /** Notes that no earlier answer was found: the leader is sent when it is next in its lane. */
  searched(run: Run, position: number): void {
    const group = this.#led.get(run)?.get(position)
    if (group) group.search = null
  }

  /** Whether all leaders of the run's followers are in the run. */
  followsOnlyItself(run: Run): boolean {
    let count = 0
    for (const { followers } of this.#led.get(run)?.values() ?? [])
      for (const position of followers.get(run) ?? []) if (run.stateOf(position) === FOLLOWING) count++
    return count === run.count(FOLLOWING)
  }

  /** Ends the lead of a closed run's lines; returns their followers in other runs. */
  close(run: Run): readonly Entry[] {
    const positions = [...(this.#led.get(run)?.keys() ?? [])]
    const followers = positions.flatMap((position) => this.dissolve(run, position))
    this.#led.delete(run)
    return followers.filter((one) => one.run !== run)
  }
}

function following(run: Run, positions: Iterable<number>): Entry[] {
  if (!run.mayMove) return []
  return Array.from(positions, (position) => ({ run, position })).filter(
    ({ position }) => run.stateOf(position) === FOLLOWING,
  )
}

function isAtBatchApi({ run, position }: Entry): boolean {
  const state = run.stateOf(position)
  return state === REMOTE || state === UNSUBMITTED
}

/** Whether the answer is an uncommitted one of this very line, from a lost run: shared, it would never be billed. */
export function isOwn(run: Run, position: number, { from }: SharedAnswer): boolean {
  return from.request_id === run.sharedFrom(position).request_id
}

function follow(group: Group, run: Run, positions: Iterable<number>): DuplicateTurn {
  const own = group.followers.get(run) ?? new Set()
  group.followers.set(run, own)
  for (const position of positions) own.add(position)
  return FOLLOW
}

/** The key of a line's request: that of its body, since all lines of a batch have the same endpoint. */
function requestKey({ batch, bytes, lines }: Run, position: number): string | null {
  const request = requestHash(batch.dedupe, bytes, lines[position]!)
  return request === null ? null : `${batch.id} ${request}`
}
