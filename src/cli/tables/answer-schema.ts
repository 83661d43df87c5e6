// The JSON Schema that answers are to follow: read from a file, and asked for as the `response_format` of requests.
import { readFile } from 'node:fs/promises'
import { Compile } from 'typebox/schema'
import { type AnswerSchema, answerSchema } from '../../tables/answer-schema.ts'
import { Failure } from '../terminal/failure.ts'

/** Other errors say the same with names. */
const WRAPPERS = ['anyOf', 'boolean']
const FAULTS_SHOWN_MAX = 5

/** Reads the schema of an object from a JSON file. */
export async function readSchema(path: string): Promise<AnswerSchema> {
  let schema: unknown
  try {
    schema = JSON.parse((await readFile(path, 'utf8')).replace(/^\ufeff/, ''))
  } catch (error) {
    if (error instanceof SyntaxError) throw new Failure(`${path} is not JSON: ${error.message}`)
    throw error
  }
  const found = answerSchema(schema)
  if (found !== null) return { ...found, fault: faultOf(found.schema, path) }
  throw new Failure(
    `${path} is not the schema of an object: it needs "properties", for example {"type": "object", "properties": {"label": {"type": "string"}}}`,
  )
}

/**
 * Checks answers by the whole schema, nested fields, enums and bounds included. Only here: the schema is the user's own,
 * and its patterns may take any time.
 */
function faultOf(schema: object, path: string): (answer: unknown) => string | null {
  try {
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
  } catch (error) {
    throw new Failure(`${path} is no JSON Schema: ${error instanceof Error ? error.message : error}`)
  }
}

/** `strict` only where OpenAI's rules for it are met; other servers follow the schema either way. */
export function responseFormat({ schema, fields }: AnswerSchema): object {
  const closed = 'additionalProperties' in schema && schema.additionalProperties === false
  const strict = closed && fields.every(({ required }) => required)
  return { type: 'json_schema', json_schema: { name: 'answer', ...(strict ? { strict } : {}), schema } }
}

function allowed(params: object): string {
  if ('allowedValues' in params) return `: ${JSON.stringify(params.allowedValues)}`
  return 'additionalProperties' in params ? `: ${JSON.stringify(params.additionalProperties)}` : ''
}
