// Reads answers of a service that may be a version older or newer than this command line (docs/upgrading.md). Fields, names of
// statuses and kinds of events that this version does not know are kept as they came. A field that an answer lacks is inherited:
// null, 0, empty or false, as its shape has it. What is printed with --json is then still what the service said.
import type { Static, TSchema } from 'typebox'
import { isRecord } from '../../domain/json-record.ts'
import { Failure } from '../terminal/failure.ts'

/** The error for an answer that this version cannot use; the call may have had its effect. */
export class Unreadable extends Failure {}

/** Reads an answer to `call` (method and path). Throws Unreadable for another type, or an object without ID. */
export function readAnswer<T extends TSchema>(shape: T, answer: unknown, call: string): Static<T> {
  const wrong = inherit(shape, answer, '')
  if (wrong === null) return answer as Static<T>
  const id = isRecord(answer) && typeof answer.id === 'string' ? ` for ${answer.id}` : ''
  throw new Unreadable(
    `the answer to ${call}${id} has an unexpected shape (${wrong}); check that OFFPEAK_BASE_URL is an Offpeak server of this version or the next`,
  )
}

/** The keywords of JSON Schema that are used. */
interface Form {
  type?: string
  const?: unknown
  anyOf?: readonly Form[]
  properties?: Readonly<Record<string, Form>>
  required?: readonly string[]
  items?: Form
}

/** The fields that no object of the API lacks, in any version. */
const ALWAYS = ['id', 'data']

/** Adds missing fields to the objects in `value`. Returns the problem of the value, or null. */
function inherit(form: Form, value: unknown, path: string): string | null {
  const forms = form.anyOf ?? [form]
  const found = forms.find((one) => isOfType(value, one.type))
  if (!found) return `${path || 'it'} is not ${forms.map(({ type }) => type).join(' or ')}`
  if (Array.isArray(value)) {
    for (const [i, item] of value.entries()) {
      const wrong = inherit(found.items ?? {}, item, `${path}/${i}`)
      if (wrong !== null) return wrong
    }
    return null
  }
  if (!isRecord(value)) return null
  const { properties = {}, required = [] } = found
  const missing: Record<string, unknown> = {}
  for (const [name, property] of Object.entries(properties)) {
    const own = value[name]
    if (own !== undefined) {
      const wrong = inherit(property, own, `${path}/${name}`)
      if (wrong !== null) return wrong
    } else if (required.includes(name)) {
      if (ALWAYS.includes(name)) return `${path || 'it'} has no ${name}`
      missing[name] = neutral(property)
    }
  }
  if (Object.keys(missing).length > 0) Object.setPrototypeOf(value, missing)
  return null
}

function neutral(form: Form): unknown {
  const forms = form.anyOf ?? [form]
  const { type, const: only } = forms.find((one) => one.type === 'null') ?? forms[0] ?? {}
  if (only !== undefined) return only
  if (type === 'object') {
    const empty = {}
    inherit({ ...form, required: (form.required ?? []).filter((name) => !ALWAYS.includes(name)) }, empty, '')
    return empty
  }
  return NEUTRAL[type ?? 'null']
}

const NEUTRAL: Readonly<Record<string, unknown>> = {
  null: null,
  string: '',
  boolean: false,
  integer: 0,
  number: 0,
  array: Object.freeze([]),
}

function isOfType(value: unknown, type: string | undefined): boolean {
  switch (type) {
    case undefined:
      return true
    case 'null':
      return value === null
    case 'array':
      return Array.isArray(value)
    case 'object':
      return isRecord(value)
    case 'integer':
      return typeof value === 'number'
    default:
      return typeof value === type
  }
}
