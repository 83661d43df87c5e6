// The JSON Schema that answers are to follow: read from a file, and asked for as the `response_format` of requests.
import { readFile } from 'node:fs/promises'
import { type AnswerSchema, answerSchema, FIELDS_MAX } from '../../tables/answer-cells.ts'
import { type SchemaCheck, SchemaChecks } from '../../tables/schema-checks.ts'
import { Failure } from '../terminal/failure.ts'

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
  if (found === null) throw notAnObject(path)
  const check = checkBy(found)
  const reason = await check.whyUnusable()
  check.close()
  if (reason !== null) throw new Failure(`${path}: ${reason}`)
  return found
}

/** To be closed. */
export function checkBy({ schema }: AnswerSchema): SchemaCheck {
  return new SchemaChecks().begin('', schema)
}

function notAnObject(path: string): Failure {
  return new Failure(
    `${path} is not the schema of an object with 1 to ${FIELDS_MAX} "properties", for example {"type": "object", "properties": {"label": {"type": "string"}}}`,
  )
}

/** `strict` only where OpenAI's rules for it are met; other servers follow the schema either way. */
export function responseFormat({ schema, fields }: AnswerSchema): object {
  const closed = 'additionalProperties' in schema && schema.additionalProperties === false
  const strict = closed && fields.every(({ required }) => required)
  return { type: 'json_schema', json_schema: { name: 'answer', ...(strict ? { strict } : {}), schema } }
}
