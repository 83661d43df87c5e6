// Checks answers without a process: one with a member `missed` misses its schema. It takes time of the test's clock.
import type { AnswerChecks } from '../../src/dispatch/gates/reasks.ts'
import { type Clock, sleep } from '../../src/domain/clock.ts'

export function answerChecks(clock: Clock, ms: () => number = () => 10): AnswerChecks {
  return {
    begin: () => ({
      async verdicts(answers) {
        await sleep(clock, ms())
        return answers.map((text) => (text.includes('"missed"') ? 'not_schema: said is missing' : null))
      },
      close() {},
    }),
  }
}
