// Limits the work of the simulator for one request, all its choices together. A request of a few bytes can ask for
// anything: strings and lists of any length, patterns, definitions that refer to each other, a hundred times over.
import { SimulatedError } from './sim-request.ts'

/** Of the answer's text, and of the values that are made for it. */
const ANSWER_BYTES_MAX = 1024 * 1024
/** Parts of schemas and patterns that are looked at; some tens of milliseconds. */
const STEPS_MAX = 200_000

/** Each method throws a SimulatedError once there is nothing left. */
export class GenerationBudget {
  #steps = STEPS_MAX
  #value_bytes = ANSWER_BYTES_MAX
  #text_bytes = ANSWER_BYTES_MAX

  steps(count: number): void {
    this.#steps -= count
    if (this.#steps < 0) throw overBudget(`takes more than ${STEPS_MAX} steps to work out`)
  }

  /** Of values, before they are made. */
  bytes(count: number): void {
    this.#value_bytes -= count
    if (this.#value_bytes < 0) throw tooLong()
  }

  /** A value that the request brought along, and that stands in the answer. */
  quoted(value: unknown): void {
    this.bytes(JSON.stringify(value)?.length ?? 0)
  }

  /** Of the answer as it is written. */
  text(count: number): void {
    this.#text_bytes -= count
    if (this.#text_bytes < 0) throw tooLong()
  }
}

function tooLong(): SimulatedError {
  return overBudget(`would be longer than ${ANSWER_BYTES_MAX} bytes`)
}

function overBudget(why: string): SimulatedError {
  const message =
    `The answer ${why}, which is more than the simulator makes. Ask for fewer choices (\`n\`), or for less in ` +
    'the JSON Schema of `response_format` or `tools`.'
  return new SimulatedError(400, 'invalid_request_error', message, null, 'invalid_value')
}
