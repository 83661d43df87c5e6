// Checks answers by a schema of a caller, in the process that serves others as well. Patterns and references may take
// any time to check, so V8 ends a check that has taken too long.
import { createContext, Script } from 'node:vm'
import { type Fault, faultOf } from '../../../tables/schema-fault.ts'

const CHECK_MS_MAX = 200
const COMPILE_MS_MAX = 1000
/** After so many checks that took too long, the rest of the table is checked by the types of its columns alone. */
const ENDED_MAX = 5
/** A schema that is larger is not compiled. */
const SCHEMA_CHARACTERS_MAX = 256 * 1024
/** What the time of a check does not follow from: without them, it is bounded by the sizes of schema and answer. */
const UNBOUNDED =
  /"(pattern|patternProperties|propertyNames|format|\$ref|\$dynamicRef|\$recursiveRef|uniqueItems)":/

const SLOW = `the answer could not be checked by the schema within ${CHECK_MS_MAX} ms`

/** Undefined where the schema cannot be used. */
export function boundedFault(schema: object): Fault | undefined {
  const text = JSON.stringify(schema)
  if (text.length > SCHEMA_CHARACTERS_MAX) return undefined
  let fault: Fault
  try {
    fault = within(() => faultOf(schema), COMPILE_MS_MAX)
    if (!UNBOUNDED.test(text)) return fault
  } catch {
    return undefined
  }
  let ended = 0
  return (answer) => {
    if (ended === ENDED_MAX) return null
    try {
      return within(() => fault(answer), CHECK_MS_MAX)
    } catch {
      ended++
      return SLOW
    }
  }
}

let job: () => unknown = () => undefined
const CONTEXT = createContext({ run: () => job() })
const RUN = new Script('run()')

/** Throws when it takes too long. */
function within<T>(act: () => T, ms: number): T {
  let result: { value: T } | undefined
  job = () => {
    result = { value: act() }
  }
  RUN.runInContext(CONTEXT, { timeout: ms })
  if (result === undefined) throw new Error('the check was ended')
  return result.value
}
