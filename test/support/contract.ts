// Checks every answer that a test receives against the API description: its status must be described, and its body must
// have exactly the described shape.
import assert from 'node:assert/strict'
import { Compile } from 'typebox/schema'
import type { RouteTable } from '../../src/http/route.ts'
import { openapiDocument } from '../../src/http/routes/openapi.ts'

type Json = Record<string, unknown>

type Check = (value: unknown) => string | null

/** By the endpoints that a server declares: describing them and compiling their shapes takes longer than starting it. */
const contracts = new Map<string, Contract>()

export class Contract {
  static of(routes: RouteTable): Contract {
    const declared = JSON.stringify(routes.all.map(({ methods, url }) => [methods, url]))
    const contract = contracts.get(declared) ?? new Contract(routes)
    contracts.set(declared, contract)
    return contract
  }

  readonly document: Json
  readonly #routes: RouteTable
  /** Pages for people, and what they load. */
  readonly #undescribed: ReadonlySet<string>
  readonly #components: unknown
  readonly #checks = new Map<unknown, Check>()

  private constructor(routes: RouteTable) {
    this.#routes = routes
    this.document = openapiDocument(routes.all)
    this.#components = strict(this.document.components)
    this.#undescribed = new Set(routes.all.filter(({ doc }) => doc === null).map(({ url }) => url))
  }

  /** The declared path of the endpoint that answers a call. */
  #patternOf(method: string, given: string): string | undefined {
    const pathname = given.length > 1 && given.endsWith('/') ? given.slice(0, -1) : given
    const urls = this.#routes.all.flatMap(({ methods, url }) => (methods.includes(method) ? [url] : []))
    return (
      urls.find((url) => url === pathname) ??
      urls.find((url) => new URLPattern({ pathname: url }).test({ pathname }))
    )
  }

  /** Throws where the answer is not as described. Paths that are no endpoint are not described. */
  verify(method: string, path: string, answer: { status: number; text: string; headers: Headers }): void {
    const url = this.#patternOf(method, path.split('?', 1)[0] ?? '')
    if (url === undefined || method === 'HEAD' || this.#undescribed.has(url)) return
    const described = url.replace(/:(\w+)/g, '{$1}').replace('*', '{model}')
    const where = `${method} ${described} ${answer.status}`
    const response = dig(
      this.document,
      'paths',
      described,
      method.toLowerCase(),
      'responses',
      String(answer.status),
    )
    assert(response, `${where} is not described`)
    assert(answer.headers.get('x-service-request-id'), `${where} has no request ID`)
    if (answer.status === 304) return
    const type = (answer.headers.get('content-type') ?? '').split(';')[0] ?? ''
    const schema = dig(response, 'content', type, 'schema')
    assert(schema, `${where} is not described as ${type}`)
    if (type !== 'application/json') return
    const problem = this.#check(schema)(JSON.parse(answer.text))
    assert.equal(problem, null, where)
  }

  #check(schema: object): Check {
    const known = this.#checks.get(schema)
    if (known) return known
    const compiled = Compile({ ...object(strict(schema)), components: this.#components })
    const check: Check = (value) => {
      if (compiled.Check(value)) return null
      const [, errors] = compiled.Errors(value)
      return `${JSON.stringify(errors.slice(0, 3))} in ${JSON.stringify(value)}`
    }
    this.#checks.set(schema, check)
    return check
  }
}

/** The same shapes, which now refuse members that they do not name. */
function strict(schema: unknown): unknown {
  if (Array.isArray(schema)) return schema.map(strict)
  if (typeof schema !== 'object' || schema === null) return schema
  const parts = Object.fromEntries(Object.entries(schema).map(([name, part]) => [name, strict(part)]))
  return parts.type === 'object' && 'properties' in parts ? { additionalProperties: false, ...parts } : parts
}

function object(value: unknown): Json {
  return typeof value === 'object' && value !== null ? { ...value } : {}
}

function dig(value: unknown, ...path: string[]): object | undefined {
  let here = value
  for (const step of path)
    here = typeof here === 'object' && here !== null ? Reflect.get(here, step) : undefined
  return typeof here === 'object' && here !== null ? here : undefined
}
