// The two endpoints that show the objects of a kind: `GET /v1/webhooks` lists them, `GET /v1/webhooks/{webhook_id}` reads
// one of them. Every list of the API is read a page at a time.
import type { FastifyRequest } from 'fastify'
import type { Static, TObject, TProperties, TSchema } from 'typebox'
import { ApiError } from '../domain/errors.ts'
import type { Listed, Page } from '../store/page.ts'
import { listProjects } from '../store/projects.ts'
import { readRow } from '../store/rows.ts'
import type { ProjectRow } from '../store/schema.ts'
import type { Reader } from '../store/store.ts'
import { type List, listOf, PAGE_LIMIT_DEFAULT, PageQuery } from '../wire/shape.ts'
import { authorize } from './access/auth.ts'
import type { Caller } from './access/caller.ts'
import { type App, found, notFoundIn, type RouteDoc, type RouteSpec, route } from './route.ts'

type Doc = Pick<RouteDoc, 'summary' | 'description' | 'errors'>
type Shown<T extends TSchema> = Static<T> & { id: string }

interface ObjectRoutes<Row extends object, T extends TSchema, Q extends TProperties> {
  access: RouteSpec<T, Q, TSchema>['access']
  shape: T
  list: Doc
  one: Doc
  /** The query of the list, beside that of every list. */
  query?: Q
  /** Converts an ID in a request, such as one with a hyphen, to the stored one. */
  idOf?: (text: string) => string
  /** Finds an object by its ID; undefined where the caller cannot see it. */
  find: (caller: Caller, id: string) => Promise<Row | undefined>
  rows: (caller: Caller, page: Page & Static<TObject<Q>>) => Promise<Listed<Row>>
  show: (row: Row, request: FastifyRequest) => Shown<T>
  /** Shows an object that is read alone; absent: as in the list. */
  showOne?: (row: Row, request: FastifyRequest) => Promise<Shown<T>>
}

/** Adds both endpoints. `at`: the path of an object, with the name of its ID: `/v1/webhooks/:webhook_id`. */
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
      // The query is that of a page and of `query`, a shape that is not known here.
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

// One page of a list. The cursor is the ID of an object that the caller can see, so that a page neither skips nor
// repeats objects when others are created or deleted meanwhile. One call reads a bounded number of rows: a page may
// have fewer objects than `limit`, even none, although the list continues.

interface PageSource<Row, Item> {
  /** Converts a cursor to the ID that it names. */
  idOf?: (cursor: string) => string
  /** Finds the object that a cursor names, where the caller can see it. */
  find(id: string): Promise<object | undefined>
  list(page: Page): Promise<Listed<Row>>
  show(row: Row): Item
  /** The cursor of the page behind a row, if not the row's ID. */
  cursor?: (row: Row) => string
}

export const EVERY_PROJECT = 'all'

/**
 * The project of the caller, or the projects in an operator's query: one by its ID, or all. Throws missing_scope and
 * project_not_found.
 */
export async function projectsOf(
  db: Reader,
  caller: Caller,
  asked: string | undefined,
): Promise<Pick<ProjectRow, 'id' | 'name'>[]> {
  const { project_id: id, project_name: name } = caller
  if (asked === undefined || asked === id) return [{ id, name }]
  authorize(caller, ['operator'])
  if (asked === EVERY_PROJECT) return await listProjects(db)
  return [found(await readRow(db, 'projects', { id: asked }), 'project_not_found', { param: 'project_id' })]
}

/** Reads a page of a list. Throws cursor_not_found. */
export async function readPage<Row, Item extends { id: string }>(
  { limit = PAGE_LIMIT_DEFAULT, order = 'desc', after, starting_after }: PageQuery,
  source: PageSource<Row, Item>,
): Promise<List<Item>> {
  const cursor = after ?? starting_after
  const behind = cursor && (source.idOf?.(cursor) ?? cursor)
  if (behind !== undefined && !(await source.find(behind)))
    throw new ApiError('cursor_not_found', undefined, {
      param: after === undefined ? 'starting_after' : 'after',
    })
  // One row more than requested, to know whether the list continues.
  const { rows, lookedTo } = await source.list({ limit: limit + 1, order, behind })
  const data = rows.slice(0, limit).map((row) => source.show(row))
  const last = rows[data.length - 1]
  const goesOn = rows.length > limit && last !== undefined
  return pageOf(data, goesOn ? (source.cursor?.(last) ?? data.at(-1)?.id ?? null) : lookedTo)
}

/** Builds a page. `next_cursor`: the cursor of the next page; null on the last. */
export function pageOf<Item extends { id: string }>(data: Item[], next_cursor: string | null): List<Item> {
  return {
    object: 'list',
    data,
    has_more: next_cursor !== null,
    next_cursor,
    first_id: data[0]?.id ?? null,
    last_id: data.at(-1)?.id ?? null,
  }
}
