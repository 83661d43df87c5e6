// Checks answers by a whole JSON Schema: nested fields, enums, bounds and patterns.
import { Compile } from 'typebox/schema'

/** What is wrong with an answer; null where nothing is. */
export type Fault = (answer: unknown) => string | null

/** Other errors say the same with names. */
const WRAPPERS = ['anyOf', 'boolean']
const FAULTS_SHOWN_MAX = 5

/** Throws where it is no JSON Schema. */
export function faultOf(schema: object): Fault {
  const whole = Compile(schema)
  // A pattern is compiled when it is met first.
  whole.Check({})
  return (answer) => {
    if (whole.Check(answer)) return null
    const [, errors] = whole.Errors(answer)
    const told = errors.filter(({ keyword }) => !WRAPPERS.includes(keyword))
    const lines = (told.length > 0 ? told : errors).map(({ instancePath, message, params }) => {
      const names = instancePath.slice(1).replaceAll('/', '.')
      return `${names === '' ? 'the answer' : names} ${message}${allowed(params)}`
    })
    return lines.slice(0, FAULTS_SHOWN_MAX).join('; ')
  }
}

function allowed(params: object): string {
  if ('allowedValues' in params) return `: ${JSON.stringify(params.allowedValues)}`
  return 'additionalProperties' in params ? `: ${JSON.stringify(params.additionalProperties)}` : ''
}
