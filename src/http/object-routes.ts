// The two endpoints that show the objects of a kind: `GET /v1/webhooks` lists them, `GET /v1/webhooks/{webhook_id}` reads
// one of them.
import type { FastifyRequest } from 'fastify'
import type { Static, TObject, TProperties, TSchema } from 'typebox'
import type { Listed, Page } from '../store/page.ts'
import { listOf, PageQuery } from '../wire/list.ts'
import type { Caller } from './access/caller.ts'
import { readPage } from './request/page.ts'
import { type App, found, notFoundIn, type RouteDoc, type RouteSpec, route } from './route.ts'

type Doc = Pick<RouteDoc, 'summary' | 'description' | 'errors'>
type Shown<T extends TSchema> = Static<T> & { id: string }

interface ObjectRoutes<Row extends object, T extends TSchema, Q extends TProperties> {
  access: RouteSpec<T, Q, TSchema>['access']
  shape: T
  list: Doc
  one: Doc
  /** Of the list, beside those of every page. */
  query?: Q
  /** The ID that a text stands for, if not that text. */
  idOf?: (text: string) => string
  /** Undefined where the caller cannot see it. */
  find: (caller: Caller, id: string) => Promise<Row | undefined>
  rows: (caller: Caller, page: Page & Static<TObject<Q>>) => Promise<Listed<Row>>
  show: (row: Row, request: FastifyRequest) => Shown<T>
  /** One that is read alone; without it, as in the list. */
  showOne?: (row: Row, request: FastifyRequest) => Promise<Shown<T>>
}

/** `at`: the path of one of them, with the name of its ID: `/v1/webhooks/:webhook_id`. */
export function objectRoutes<Row extends object, T extends TSchema, Q extends TProperties>(
  app: App,
  at: `/v1/${string}/:${string}_id`,
  { access, shape, list, one, query: filters, ...spec }: ObjectRoutes<Row, T, Q>,
): void {
  const { idOf = (text) => text, find, rows, show, showOne = show } = spec
  const [, , kind = '', name = ''] = at.split(/\/:?/)
  const [missing = 'invalid_request'] = notFoundIn(at)
  route(app, `GET /v1/${kind}`, {
    access,
    operation: `list${capitalized(kind)}`,
    ...list,
    answer: listOf<TSchema>(shape),
    query: { ...PageQuery, ...filters },
    async handler(request, caller) {
      // That of a page, and of shapes that are not known here.
      const query = request.query as PageQuery & Static<TObject<Q>>
      return await readPage(query, {
        idOf,
        find: (id) => find(caller, id),
        list: (page) => rows(caller, { ...query, ...page }),
        show: (row) => show(row, request),
      })
    },
  })
  route(app, `GET ${at}`, {
    access,
    operation: `get${capitalized(name.replace('_id', ''))}`,
    ...one,
    answer: shape as TSchema,
    async handler(request, caller) {
      const id: string = Reflect.get(Object(request.params), name)
      return await showOne(found(await find(caller, idOf(id)), missing), request)
    },
  })
}

function capitalized(name: string): string {
  return `${name.charAt(0).toUpperCase()}${name.slice(1)}`
}
