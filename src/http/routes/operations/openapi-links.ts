// The links of the OpenAPI document: the `id` in the answer of an endpoint that makes an object is what the endpoints of
// that object take in their path, and the ID of a file what a batch is created with. Generated clients and tests that go
// through the API step by step follow them.

type Json = Record<string, unknown>

interface Operation {
  operation: string
  method: string
  path: string
  /** The shape of its answer. */
  answer: unknown
}

const ID = '$response.body#/id'

/** The links of an endpoint's answer; undefined where it makes no object. */
export function linksOf({ method, path, answer }: Operation, all: readonly Operation[]): Json | undefined {
  const made = method === 'POST' && !path.includes('{') ? objectOf(answer) : null
  if (made === null) return undefined
  // An `api_key` is the `key_id` of other endpoints.
  const parameter = `${made.slice(made.lastIndexOf('_') + 1)}_id`
  const links = all
    .filter((one) => one.path.startsWith(`${path}/{${parameter}}`) && !/\{.*\{/.test(one.path))
    .map(({ operation }) => [operation, { operationId: operation, parameters: { [parameter]: ID } }])
  const batch =
    made === 'file'
      ? [['createBatch', { operationId: 'createBatch', requestBody: { input_file_id: ID } }]]
      : []
  return Object.fromEntries([...links, ...batch])
}

/** The value of `object` in the answer; null where it has none, or no `id`. */
function objectOf(shape: unknown): string | null {
  if (!isObject(shape)) return null
  if (Array.isArray(shape.anyOf)) return shape.anyOf.map(objectOf).find((found) => found !== null) ?? null
  const { id, object } = isObject(shape.properties) ? shape.properties : {}
  return id !== undefined && isObject(object) && typeof object.const === 'string' ? object.const : null
}

function isObject(value: unknown): value is Json {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}
