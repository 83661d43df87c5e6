// The calls that the recording proxy has logged: which lines were sent again, and whether a kill explains it.
import { closeSync, openSync, readSync } from 'node:fs'

export interface RecordedCall {
  mark: string
  /** When it had arrived, Unix ms. */
  at: number
  /** When it was answered; null: never. */
  answered_at: number | null
  /** The text of the answer and its tokens; null for an error or no answer. */
  answer: { content: string; prompt_tokens: number; completion_tokens: number } | null
  /** It was refused, or its connection broken off, by the model server itself: it may be tried again. */
  refused: boolean
  /** When the other side had gone before the answer. */
  gone_at: number | null
}

/** Something was killed, or lost its lease. What was in flight between `from` and `to` (Unix ms) may be sent again. */
export interface Kill {
  what: string
  from: number
  to: number
}

/** An answer that came so long before a fall is taken to have been in flight still: it may not be committed. */
const COMMIT_MS = 2_000
/** On a machine that is very busy it may not be committed for as long as this. */
const COMMIT_MS_MAX = 10_000

const GAP_MS_MIN = 1_000

/** Reads the send log as it grows. */
export class SendLog {
  readonly calls = new Map<number, RecordedCall>()
  readonly by_mark = new Map<string, RecordedCall[]>()
  /** Times of some length without a call, pauses left out. */
  readonly #gaps: { from: number; to: number }[] = []
  #last_call: number | null = null
  readonly #path: string
  #at = 0
  #rest = ''

  constructor(path: string) {
    this.#path = path
  }

  /** There is no work, so the next gap does not count. */
  pause(): void {
    this.#last_call = null
  }

  /** The longest time without a call and without a kill, in ms. */
  longestGapMs(killEvents: readonly Kill[]): number {
    let longest = 0
    for (const { from, to } of this.#gaps) {
      const ends = killEvents.map((kill) => Math.min(kill.to, to)).filter((end) => end > from)
      const marks = [from, ...ends, to].sort((a, b) => a - b)
      for (const [i, mark] of marks.entries()) longest = Math.max(longest, (marks[i + 1] ?? mark) - mark)
    }
    return longest
  }

  read(): void {
    const file = openSync(this.#path, 'r')
    try {
      const piece = Buffer.alloc(1 << 20)
      for (;;) {
        const count = readSync(file, piece, 0, piece.length, this.#at)
        if (count === 0) break
        this.#at += count
        const lines = (this.#rest + piece.toString('latin1', 0, count)).split('\n')
        this.#rest = lines.pop() ?? ''
        for (const line of lines) this.#take(JSON.parse(line))
      }
    } finally {
      closeSync(file)
    }
  }

  #take(note: {
    at: number
    what: string
    call: number
    mark: string
    content: string
    prompt_tokens: number
    completion_tokens: number
  }): void {
    if (note.what === 'call') {
      if (this.#last_call !== null && note.at - this.#last_call > GAP_MS_MIN)
        this.#gaps.push({ from: this.#last_call, to: note.at })
      this.#last_call = note.at
      const { mark, at } = note
      const call = { mark, at, answered_at: null, answer: null, refused: false, gone_at: null }
      this.calls.set(note.call, call)
      const others = this.by_mark.get(mark)
      if (others) others.push(call)
      else this.by_mark.set(mark, [call])
      return
    }
    const call = this.calls.get(note.call)
    if (!call) throw new Error(`the send log names call ${note.call}, which it has not recorded`)
    if (note.what === 'gone') call.gone_at = call.answered_at === null ? note.at : null
    else if (note.what !== 'sent') {
      call.answered_at = note.at
      call.refused = note.what === 'refused'
      const { content, prompt_tokens, completion_tokens } = note
      if (!call.refused) call.answer = { content, prompt_tokens, completion_tokens }
    }
  }
}

function wasInFlight(
  { at, answered_at, gone_at }: RecordedCall,
  { from, to }: Kill,
  commit_ms = COMMIT_MS,
): boolean {
  if (at > to || (gone_at !== null && gone_at < from - commit_ms)) return false
  return answered_at === null || answered_at >= from - commit_ms
}

export interface SentAgain {
  /** Lines that were sent once more after a call that the model server did not refuse. */
  count: number
  /** Lines in flight at killEvents: more cannot be sent again. */
  in_flight: number
  /** Those that nothing explains. */
  unexplained: string[]
}

export function sentAgain(sendLog: SendLog, killEvents: readonly Kill[]): SentAgain {
  const found: SentAgain = { count: 0, in_flight: 0, unexplained: [] }
  for (const [mark, calls] of sendLog.by_mark) {
    const explained = new Set<Kill>()
    for (const [i, call] of calls.entries()) {
      if (call.refused) continue
      for (const kill of killEvents) if (wasInFlight(call, kill)) found.in_flight++
      const next = calls[i + 1]
      if (!next) continue
      found.count++
      // One kill sends a line once more, not twice.
      const why = killEvents.find(
        (kill) => !explained.has(kill) && wasInFlight(call, kill, COMMIT_MS_MAX) && next.at >= kill.from,
      )
      if (why) explained.add(why)
      else
        found.unexplained.push(
          `${mark} was called at ${call.at} and again at ${next.at}; without a kill in between`,
        )
    }
  }
  return found
}
