// Decides which answers of a batch with `reask` are asked for again: answers cut by length, and answers that do not
// match the JSON Schema of their request. The schema is the caller's, so answers are checked in processes of their own
// (tables/schema-checks.ts). A line stays in flight until its answer is checked. A check that cannot be done finds
// nothing wrong. The last answer of a line is kept: it counts if no other one comes.
import type { ResponseMemory } from '../../backends/response-memory.ts'
import type { AnswerFault } from '../../domain/batch.ts'
import { isRepairable, repairMessages, schemaAsked } from '../../jsonl/ask-again.ts'
import {
  type Answered,
  type Answerer,
  billAnswer,
  isWithinProjection,
  NO_EARLIER,
} from '../../results/record-line.ts'
import type { EndedAttempt } from '../../servers/upstream.ts'
import { answerOf } from '../../tables/answer-cells.ts'
import type { LineTries, Run } from '../run.ts'
import { ANSWERED, addAttempt } from './retries.ts'

export interface Fault {
  /** The code for the audit record, without any content. */
  code: AnswerFault
  /** The words for the model. */
  message: string
  /** The text of the faulty answer. */
  text: string
}

/** Checks answers, the texts of JSON values, by one JSON Schema. */
interface AnswerCheck {
  /** Checks answers: null for one without a fault, else the fault, such as `not_schema: …`. */
  verdicts: (answers: readonly string[]) => Promise<(string | null)[]>
  close: () => void
}

/** Checks answers by schemas. `spent` is shared by all schemas of a chunk. */
export interface AnswerChecks {
  begin: (project_id: string, schema: object, spent: { usedMs: number; checked: number }) => AnswerCheck
}

export interface CheckedAnswer {
  run: Run
  position: number
  answered: Answered
  by: Answerer
  attempt: EndedAttempt
}

interface Waiting extends CheckedAnswer {
  text: string
  /** The bytes of the answer and of its text, which may take two for a character. */
  bytes: number
}

interface RunChecks {
  spent: { usedMs: number; checked: number }
  /** Checks by the text of the schema, in the order of their last use. */
  bySchema: Map<string, { check: AnswerCheck; waiting: Waiting[]; isBusy: boolean }>
  waiting: Map<number, Waiting>
}

/** The largest answer that is examined: parsing a larger one would hold up the lines of all batches. */
const ANSWER_BYTES_MAX = 4 * 1024 * 1024
/** The limit of characters in one call, which copies all of the texts. */
const CHECKED_CHARACTERS_MAX = 1024 * 1024
/** The limit of a chunk's schemas that stay prepared; others are prepared again for each use. */
const SCHEMAS_MAX = 8
const CUT_OFF = 'The answer was cut off at its limit of tokens. Give a shorter one.'
const NOT_JSON = 'The answer is not valid JSON, and has to follow the JSON Schema of the request.'
const NOT_SCHEMA = 'The answer does not follow the JSON Schema of the request: '

interface ReasksOptions {
  checks: AnswerChecks
  memory: Pick<ResponseMemory, 'hold' | 'free'>
  turn: { push(examined: Examined): void }
}

export interface Examined {
  kind: 'examined'
  run: Run
  checked: CheckedAnswer
  fault: Fault | null
}

export class Reasks {
  readonly #options: ReasksOptions
  readonly #runs = new Map<Run, RunChecks>()

  constructor(options: ReasksOptions) {
    this.#options = options
  }

  /** The fault of an answer; null: none. `checking`: the result will be in the turn's list. */
  examine(checked: CheckedAnswer): Fault | 'checking' | null {
    const { run, position, answered } = checked
    if (answered.body.length > ANSWER_BYTES_MAX) return null
    const told = answerOf(JSON.parse(answered.body.toString()))
    const text = 'text' in told ? told.text : ''
    if (told.finishReason === 'length') return { code: 'cut_off', message: CUT_OFF, text }
    if ('error' in told) return null
    const { start, end } = run.lines[position]!.body
    const schema = schemaAsked(run.bytes.subarray(start, end))
    if (schema === null) return null
    try {
      JSON.parse(text)
    } catch {
      return { code: 'not_json', message: NOT_JSON, text }
    }
    this.#check(checked, schema, text)
    return 'checking'
  }

  #check(checked: CheckedAnswer, schema: object, text: string): void {
    const { run, position, answered } = checked
    // The bytes of an answer belong to the connection that it came by.
    const own = { ...answered, body: Buffer.from(answered.body) }
    const waiting = { ...checked, answered: own, text, bytes: own.body.length + 2 * text.length }
    const checks = this.#runs.get(run) ?? {
      spent: { usedMs: 0, checked: 0 },
      bySchema: new Map(),
      waiting: new Map(),
    }
    this.#runs.set(run, checks)
    checks.waiting.set(position, waiting)
    this.#options.memory.hold('examined', waiting.bytes)
    const key = JSON.stringify(schema)
    const group = checks.bySchema.get(key) ?? {
      check: this.#options.checks.begin(run.claim.project_id, schema, checks.spent),
      waiting: [],
      isBusy: false,
    }
    checks.bySchema.delete(key)
    checks.bySchema.set(key, group)
    group.waiting.push(waiting)
    for (const [other, { check, isBusy }] of checks.bySchema) {
      if (checks.bySchema.size <= SCHEMAS_MAX) break
      if (isBusy || other === key) continue
      check.close()
      checks.bySchema.delete(other)
    }
    if (!group.isBusy) void this.#work(checks, group)
  }

  /** Checks all answers that wait for one schema, including answers that arrive meanwhile. */
  async #work(
    checks: RunChecks,
    group: { check: AnswerCheck; waiting: Waiting[]; isBusy: boolean },
  ): Promise<void> {
    group.isBusy = true
    while (group.waiting.length > 0) {
      let count = 0
      for (let characters = 0; characters < CHECKED_CHARACTERS_MAX && count < group.waiting.length; count++)
        characters += group.waiting[count]!.text.length
      const some = group.waiting.splice(0, count)
      const verdicts = await group.check.verdicts(some.map(({ text }) => text)).catch(() => [])
      for (const [i, one] of some.entries()) {
        // Its run has stopped, and the answer stands.
        if (checks.waiting.get(one.position) !== one) continue
        this.#forget(checks, one)
        const wrong = whatIsWrong(verdicts[i] ?? null)
        const message = `${NOT_SCHEMA}${wrong}.`
        const fault: Fault | null = wrong === null ? null : { code: 'not_schema', message, text: one.text }
        this.#options.turn.push({ kind: 'examined', run: one.run, checked: one, fault })
      }
    }
    group.isBusy = false
  }

  #forget(checks: RunChecks, one: Waiting): void {
    checks.waiting.delete(one.position)
    this.#options.memory.free('examined', one.bytes)
  }

  /** Keeps the answer, which stands without a better one; returns whether cost and memory allow another attempt. */
  keep({ run, position, answered: { body, answer }, by, attempt }: CheckedAnswer, fault: Fault): boolean {
    const earlier = run.triesOf(position)?.kept?.spent ?? NO_EARLIER
    const to = run.recorded(position)
    const tries = addAttempt(run, position, attempt, ANSWERED, fault.code)
    const isRepair = run.reask?.mode === 'repair'
    const mayGo = !isRepair || isRepairable(fault.text, to.line.output_tokens_max)
    const messages = isRepair && mayGo ? repairMessages(fault.text, fault.message) : null
    const spent = billAnswer(to, answer, by, earlier, messages?.length ?? 0)
    const asked = (tries.kept?.asked ?? 0) + 1
    this.free(tries)
    const bytes = body.length + (messages?.length ?? 0)
    const isHeld = mayGo && isWithinProjection(to, spent) && this.#options.memory.hold('kept', bytes)
    const held = { body: Buffer.from(body), bytes: isHeld ? bytes : 0 }
    tries.kept = { ...held, answer, by, earlier, spent, asked, messages }
    return isHeld
  }

  /** Forgets the answer that was kept. */
  free(tries: LineTries): void {
    if (tries.kept) this.#options.memory.free('kept', tries.kept.bytes)
    tries.kept = null
  }

  /** Ends the checks of a run; returns the answers that waited. */
  close(run: Run): readonly CheckedAnswer[] {
    const checks = this.#runs.get(run)
    if (!checks) return []
    this.#runs.delete(run)
    const waiting = [...checks.waiting.values()]
    for (const one of waiting) this.#forget(checks, one)
    for (const { check } of checks.bySchema.values()) check.close()
    return waiting
  }
}

/** Whether the line is not asked again. Its answer is examined too: batches count faults of final answers. */
export function isLastAsked(run: Run, position: number): boolean {
  const asked = run.triesOf(position)?.kept?.asked ?? 0
  return run.reask === null || asked >= run.reask.max
}

/** The fault that a verdict names; null for no fault, or an unknown one. */
function whatIsWrong(verdict: string | null): string | null {
  const prefix = 'not_schema: '
  return verdict?.startsWith(prefix) ? verdict.slice(prefix.length) : null
}
