// Checks answers by callers' JSON Schemas. A schema may take any time and memory, by its patterns, its references and
// its size, so this process never evaluates one. A project that has tables open gets a process of its own with a small
// heap; a bounded number of these run at once, in turn. Each answer and each table has a budget of time; answers that
// are not checked within it are marked so.
import type { ChildProcess } from 'node:child_process'
import { systemClock } from '../domain/clock.ts'
import { ProjectQueue } from '../domain/project-queue.ts'
import { forkConfined } from './confined-process.ts'
import type { FromProcess, ToProcess, Verdict } from './schema-check-process.ts'

export interface CheckLimits {
  processes: number
  heapMib: number
  /** The longest schema in characters that is checked by. */
  schemaCharacters: number
  /** The limit of CPU time for compiling a schema, in ms like the others below. */
  compileMs: number
  answerMs: number
  /** The limit for all checks of a table, and the addition for each of its answers. */
  tableMs: number
  tableMsPerAnswer: number
}

const LIMITS: CheckLimits = {
  processes: 2,
  heapMib: 128,
  schemaCharacters: 256 * 1024,
  compileMs: 2_000,
  answerMs: 250,
  tableMs: 10_000,
  tableMsPerAnswer: 1,
}

/** The time in ms after which a process that has not loaded has failed. */
const LOAD_MS_MAX = 60_000
/** The factor on a check's CPU limit after which its process is killed, in wall time: the machine may be busy. */
const BUSY = 20

/** The CPU time that checks took, and the number of answers checked. */
interface SpentTime {
  usedMs: number
  checked: number
}

/** The schema-check processes of one process of the service. */
export class SchemaChecks {
  readonly limits: CheckLimits
  readonly #queue: ProjectQueue
  /** The processes by project; the last used at the end. */
  readonly #processes = new Map<string, CheckProcess>()

  constructor(limits: Partial<CheckLimits> = {}) {
    this.limits = { ...LIMITS, ...limits }
    this.#queue = new ProjectQueue({ atOnce: this.limits.processes, perProject: 1 })
  }

  /** Begins the checks of one table. `spent`: shared by all checks with one budget of time. */
  begin(project_id: string, schema: object, spent: SpentTime = { usedMs: 0, checked: 0 }): SchemaCheck {
    return new SchemaCheck(this, project_id, schema, spent)
  }

  /** Runs `act` with the project's process when its turn comes. Throws when the check is closed meanwhile. */
  async use<T>(check: SchemaCheck, act: (checking: CheckProcess) => Promise<T>): Promise<T> {
    const { project_id, closed } = check
    return await this.#queue.run(
      project_id,
      async () => {
        closed.throwIfAborted()
        const checking = this.#processOf(project_id)
        checking.busyWith = check
        try {
          const result = await act(checking)
          closed.throwIfAborted()
          return result
        } finally {
          checking.busyWith = null
        }
      },
      closed,
    )
  }

  /** Ends the check, and the process if no other check uses it. */
  end(check: SchemaCheck): void {
    const checking = this.#processes.get(check.project_id)
    if (!checking) return
    const isLast = checking.forget(check)
    if (isLast || checking.busyWith === check) this.#kill(check.project_id, checking)
  }

  #processOf(project_id: string): CheckProcess {
    let checking = this.#processes.get(project_id)
    this.#processes.delete(project_id)
    if (!checking || checking.hasEnded) {
      for (const [id, other] of this.#processes)
        if (this.#processes.size >= this.limits.processes && !other.busyWith) this.#kill(id, other)
      checking = new CheckProcess(this.limits.heapMib)
    }
    this.#processes.set(project_id, checking)
    return checking
  }

  #kill(project_id: string, checking: CheckProcess): void {
    checking.kill()
    this.#processes.delete(project_id)
  }
}

/** Checks the answers of one table by its schema. */
export class SchemaCheck {
  readonly project_id: string
  readonly #checks: SchemaChecks
  readonly #schema: string
  readonly #closing = new AbortController()
  /** The reason for which no further answer is checked; null while answers are. */
  #unusable: string | null = null
  readonly #spent: SpentTime
  /** The number of answers still to be sent one at a time, because one of them has crashed the process. */
  #oneByOne = 0

  constructor(checks: SchemaChecks, project_id: string, schema: object, spent: SpentTime) {
    this.#spent = spent
    this.project_id = project_id
    this.#checks = checks
    this.#schema = JSON.stringify(schema)
    const { schemaCharacters } = checks.limits
    if (this.#schema.length > schemaCharacters)
      this.#unusable = `the schema cannot be used: it is longer than ${schemaCharacters} characters`
  }

  get closed(): AbortSignal {
    return this.#closing.signal
  }

  /** The reason for which answers cannot be checked by the schema; null if they can. */
  async whyUnusable(): Promise<string | null> {
    if (this.#unusable === null) await this.#checkSome([])
    return this.#unusable
  }

  /** Checks answers, each a JSON text. Throws when the check is closed meanwhile. */
  async verdicts(answers: readonly string[]): Promise<Verdict[]> {
    const verdicts: Verdict[] = []
    while (verdicts.length < answers.length) {
      if (this.#unusable === null) verdicts.push(...(await this.#checkSome(answers.slice(verdicts.length))))
      else verdicts.push(`not_checked: ${this.#unusable}`)
    }
    return verdicts
  }

  /** Stops the checks of the table. */
  close(): void {
    if (this.closed.aborted) return
    this.#closing.abort(new Error('the checks of this table were closed'))
    this.#checks.end(this)
  }

  [Symbol.dispose](): void {
    this.close()
  }

  /** Checks some answers. Returns the first ones' verdicts; none after a crash, or for an unusable schema. */
  async #checkSome(answers: readonly string[]): Promise<Verdict[]> {
    return await this.#checks.use(this, async (checking) => {
      if (!(await checking.loaded)) return this.#giveUp('the process that checks did not start')
      return await this.#checkWith(checking, answers)
    })
  }

  async #checkWith(checking: CheckProcess, answers: readonly string[]): Promise<Verdict[]> {
    const { compileMs, answerMs, heapMib } = this.#checks.limits
    const [isKnown, id] = checking.idOf(this)
    if (!isKnown) {
      const reply = await this.#ask(checking, { begin: id, schema: this.#schema, compileMs })
      if (reply === 'late') return this.#giveUp(USED_UP)
      const reason = reply === 'crashed' ? `it takes more than ${heapMib} MiB to prepare` : reply.begun
      if (reason) return this.#giveUp(`the schema cannot be used: ${reason}`)
    }
    if (answers.length === 0) return []
    const sent = this.#oneByOne > 0 ? answers.slice(0, 1) : answers
    const reply = await this.#ask(checking, { check: id, answers: sent, answerMs })
    if (reply === 'late') return this.#giveUp(USED_UP)
    if (reply === 'crashed' && sent.length > 1) {
      this.#oneByOne = sent.length
      return []
    }
    const verdicts = (reply !== 'crashed' && reply.verdicts) || [
      `not_checked: checking the answer by the schema takes more than ${heapMib} MiB`,
    ]
    this.#spent.checked += verdicts.length
    this.#oneByOne = Math.max(0, this.#oneByOne - verdicts.length)
    return verdicts
  }

  async #ask(checking: CheckProcess, order: ToProcess): Promise<Reply> {
    const { tableMs, tableMsPerAnswer } = this.#checks.limits
    const spent = this.#spent
    const leftMs = tableMs + tableMsPerAnswer * spent.checked - spent.usedMs
    if (leftMs <= 0) return 'late'
    const begun = systemClock.steady()
    const reply = await checking.ask(order, leftMs * BUSY)
    // A process that crashed does not report its CPU time.
    spent.usedMs += typeof reply === 'string' ? systemClock.steady() - begun : reply.cpuMs
    return reply
  }

  #giveUp(reason: string): Verdict[] {
    this.#unusable = reason
    return []
  }
}

const USED_UP = 'the time for checking this table by its schema is used up'

type Reply = Exclude<FromProcess, 'loaded'> | 'late' | 'crashed'

class CheckProcess {
  readonly loaded: Promise<boolean>
  /** The table for which the process works now. */
  busyWith: SchemaCheck | null = null
  hasEnded = false
  readonly #child: ChildProcess
  readonly #ids = new Map<SchemaCheck, number>()
  #nextId = 1
  #reply: (reply: Reply) => void = () => {}

  constructor(heapMib: number) {
    this.#child = forkConfined('schema-check-process', { heapMib })
    // The process does not keep this one running.
    this.#child.unref()
    this.#child.channel?.unref()
    this.loaded = new Promise((resolve) => {
      const cancel = systemClock.after(LOAD_MS_MAX, () => this.kill())
      const end = (): void => {
        cancel()
        this.hasEnded = true
        resolve(false)
        this.#reply('crashed')
      }
      this.#child.once('exit', end)
      this.#child.once('error', end)
      this.#child.on('message', (message: FromProcess) => {
        if (message !== 'loaded') return this.#reply(message)
        cancel()
        resolve(true)
      })
    })
  }

  /** The number of the check's schema, and whether the process has the schema. */
  idOf(check: SchemaCheck): [isKnown: boolean, id: number] {
    const known = this.#ids.get(check)
    if (known !== undefined) return [true, known]
    const id = this.#nextId++
    this.#ids.set(check, id)
    return [false, id]
  }

  /** Removes a check; returns whether the process has no other. */
  forget(check: SchemaCheck): boolean {
    const id = this.#ids.get(check)
    if (id !== undefined) this.#send({ end: id })
    this.#ids.delete(check)
    return this.#ids.size === 0
  }

  /** Sends an order and waits for the reply. Kills the process after `ms`. */
  async ask(order: ToProcess, ms: number): Promise<Reply> {
    if (this.hasEnded) return 'crashed'
    return await new Promise((resolve) => {
      const cancel = systemClock.after(ms, () => {
        resolve('late')
        this.kill()
      })
      this.#reply = (reply) => {
        cancel()
        resolve(reply)
      }
      this.#send(order)
    })
  }

  kill(): void {
    this.hasEnded = true
    this.#child.kill('SIGKILL')
    this.#reply('crashed')
  }

  #send(order: ToProcess): void {
    // An exiting process receives nothing; its exit is handled.
    if (this.#child.connected) this.#child.send(order, () => {})
  }
}
