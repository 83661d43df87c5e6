// Describes in one sentence what a request should have contained and what it contained instead.
import type { TLocalizedValidationError } from 'typebox/error'
import { ApiError } from '../../domain/errors.ts'

/** Errors that only wrap a more precise one. */
const WRAPPERS = ['additionalProperties', 'propertyNames', 'anyOf']
const SHOWN_CHARACTERS_MAX = 60

/** `whole` names the value that was checked: "The request body". */
export function describeMismatch(
  errors: readonly TLocalizedValidationError[],
  value: unknown,
  whole: string,
): ApiError {
  const telling = errors.filter(({ keyword }) => !WRAPPERS.includes(keyword))
  const error = telling.find((candidate) => !isNullBranch(candidate)) ?? telling[0] ?? errors[0]
  if (!error) return new ApiError('invalid_request')
  if (error.keyword === 'required') {
    const missing = error.params.requiredProperties[0] ?? ''
    const param = [...path(error.instancePath), missing].join('.')
    return new ApiError('invalid_request', `\`${param}\` is required.`, { param })
  }
  const steps = path(error.instancePath)
  const siblings = telling.filter((other) => other.instancePath === error.instancePath)
  const found = at(value, steps)
  if (steps.length === 0) {
    const what = found === null || found === undefined ? 'it is empty' : `it is ${shown(found)}`
    return new ApiError('invalid_request', `${whole} must be a JSON object; ${what}.`)
  }
  const param = steps.join('.')
  const isKey = error.schemaPath.endsWith('/propertyNames')
  const subject = isKey ? `The key \`${param}\`` : `\`${param}\``
  const got = isKey || (typeof found === 'object' && error.keyword !== 'type') ? '' : `, not ${shown(found)}`
  return new ApiError('invalid_request', `${subject} must ${expectation(siblings, error)}${got}.`, { param })
}

function expectation(
  siblings: readonly TLocalizedValidationError[],
  error: TLocalizedValidationError,
): string {
  const constants = siblings.flatMap((other) =>
    other.keyword === 'const' ? [JSON.stringify(other.params.allowedValue)] : [],
  )
  if (constants.length > 0) return `be ${constants.join(' or ')}`
  const types = siblings.flatMap((other) => (other.keyword === 'type' ? named(other.params.type) : []))
  if (error.keyword === 'type') return `be ${[...new Set(types)].join(' or ')}`
  switch (error.keyword) {
    case 'enum':
      return `be one of ${error.params.allowedValues.map((allowed) => JSON.stringify(allowed)).join(', ')}`
    case 'minimum':
      return `be at least ${error.params.limit}`
    case 'maximum':
      return `be at most ${error.params.limit}`
    default:
      return error.message.replace(/^must /, '')
  }
}

/** Drops "must be null" where another error says what is wrong with a nullable value. */
function isNullBranch(error: TLocalizedValidationError): boolean {
  return error.keyword === 'type' && error.params.type === 'null'
}

function named(type: string | string[]): string[] {
  const names: Record<string, string> = {
    string: 'a string',
    integer: 'a whole number',
    number: 'a number',
    boolean: 'true or false',
    object: 'an object',
    array: 'an array',
  }
  return [type].flat().map((name) => names[name] ?? name)
}

/** A JSON pointer (RFC 6901) as its steps. */
function path(pointer: string): string[] {
  return pointer
    .split('/')
    .slice(1)
    .map((step) => step.replaceAll('~1', '/').replaceAll('~0', '~'))
}

function at(value: unknown, steps: readonly string[]): unknown {
  let here = value
  for (const step of steps) {
    if (typeof here !== 'object' || here === null) return undefined
    here = Reflect.get(here, step)
  }
  return here
}

function shown(value: unknown): string {
  if (value === undefined) return 'nothing'
  if (Array.isArray(value)) return 'an array'
  if (typeof value === 'object' && value !== null) return 'an object'
  const text = JSON.stringify(value) ?? typeof value
  const short = text.length > SHOWN_CHARACTERS_MAX ? `${text.slice(0, SHOWN_CHARACTERS_MAX)}…` : text
  return typeof value === 'string' ? short : `the ${typeof value} ${short}`.replace('the object null', 'null')
}
