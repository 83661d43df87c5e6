// Records every statement of a call and checks its query plan. A read must search indexes, in its order, and may look
// at no more rows than a page has, except rows that the statement before it has bounded (store/page.ts).
import assert from 'node:assert/strict'
import { CompiledQuery, Kysely, type KyselyPlugin, PostgresAdapter, type RootOperationNode } from 'kysely'
import { ROWS_LOOKED_AT_MAX } from '../../src/store/page.ts'
import type { Store } from '../../src/store/store.ts'

/** Columns that a read may filter by without an index, and why few rows fail such a condition. */
const UNINDEXED: Readonly<Record<string, string>> = {
  'files.expires_at': 'maintenance deletes expired files within a second',
}

/** Tables and partial indexes that are always small: what they hold is bounded by the number of processes and models. */
const SMALL = ['workers', 'lane_reports', 'worker_reports', 'server_hours', 'paused_models', 'chunks_leased']

/** Each level of an operation node: a plain object that may have others below it. */
type Node = Readonly<Record<string, unknown>>

export class WatchedReads {
  readonly store: Store
  #nodes: RootOperationNode[] = []
  /** What was found of a statement before. */
  readonly #judged = new Map<string, Promise<string[]>>()

  constructor(store: Store) {
    const { read } = store
    assert(read instanceof Kysely)
    const plugin: KyselyPlugin = {
      transformQuery: ({ node }) => {
        this.#nodes.push(node)
        return node
      },
      transformResult: async ({ result }) => result,
    }
    this.store = { ...store, read: read.withPlugin(plugin) }
  }

  /** What is wrong with the plans of the statements that ran since the last call. */
  async faults(): Promise<string[]> {
    const nodes = this.#nodes
    this.#nodes = []
    const faults: string[] = []
    for (const [i, node] of nodes.entries()) {
      const before = nodes[i - 1]
      const bounded = before !== undefined && boundsNext(before) && tableOf(before) === tableOf(node)
      faults.push(...(await this.#faultsOf(node, bounded)))
    }
    this.#nodes = []
    return faults
  }

  async #faultsOf(node: RootOperationNode, bounded: boolean): Promise<string[]> {
    const executor = this.store.read.getExecutor()
    const { sql, parameters } = executor.compileQuery(node, { queryId: 'plan' })
    const name = `${bounded} ${sql}`
    const found = this.#judged.get(name) ?? this.#judge(node, bounded, sql, parameters)
    this.#judged.set(name, found)
    return (await found).map((problem) => `${problem}: ${sql}`)
  }

  async #judge(
    node: RootOperationNode,
    bounded: boolean,
    sql: string,
    parameters: readonly unknown[],
  ): Promise<string[]> {
    const executor = this.store.read.getExecutor()
    const explain = async <Row>(prefix: string): Promise<Row[]> => {
      const query = CompiledQuery.raw(`${prefix} ${sql}`, [...parameters])
      return (await executor.executeQuery<Row>(query)).rows
    }
    if (executor.adapter instanceof PostgresAdapter)
      return postgresFaults(await explain('EXPLAIN (FORMAT JSON)'))
    const filters = bounded ? null : filtersOf(node)
    return sqliteFaults(await explain('EXPLAIN QUERY PLAN'), filters, await this.#indexes())
  }

  #known: Promise<ReadonlyMap<string, Index>> | null = null

  #indexes(): Promise<ReadonlyMap<string, Index>> {
    this.#known ??= readIndexes(this.store)
    return this.#known
  }
}

interface Index {
  /** Null: it is not unique. */
  unique: readonly string[] | null
  /** The columns that its condition names. */
  condition: string
}

async function readIndexes({ read }: Store): Promise<ReadonlyMap<string, Index>> {
  const run = async <Row>(text: string): Promise<Row[]> =>
    (await read.getExecutor().executeQuery<Row>(CompiledQuery.raw(text))).rows
  const rows = await run<{ name: string; sql: string | null; uniq: number; columns: string }>(`
    SELECT m.name, m.sql, l."unique" AS uniq,
      (SELECT group_concat(i.name) FROM pragma_index_info(m.name) AS i) AS columns
    FROM sqlite_master AS m JOIN pragma_index_list(m.tbl_name) AS l ON l.name = m.name WHERE m.type = 'index'`)
  return new Map(
    rows.map(({ name, sql, uniq, columns }) => {
      return [name, { unique: uniq ? columns.split(',') : null, condition: sql?.split(' WHERE ')[1] ?? '' }]
    }),
  )
}

function sqliteFaults(
  plan: readonly { detail: string }[],
  filters: ReadonlyMap<string, ReadonlySet<string>> | null,
  indexes: ReadonlyMap<string, Index>,
): string[] {
  const faults: string[] = []
  if (
    plan.every(({ detail }) => SMALL.some((name) => detail.includes(name)) || detail.startsWith('USE TEMP'))
  )
    return []
  for (const { detail } of plan) {
    const [, table = '', index = '', terms = ''] =
      /^SEARCH (\S+).* USING (?:COVERING )?INDEX (\S+) \((.*)\)/.exec(detail) ?? []
    if (/^USE TEMP B-TREE/.test(detail)) faults.push(`sorts (${detail})`)
    else if (
      /^SCAN (?!CONSTANT ROW)/.test(detail) &&
      !SMALL.some((name) => detail.startsWith(`SCAN ${name}`))
    ) {
      // In the order of an index, from its end: whatever is listed as a whole is read so.
      if (
        !/ USING (COVERING )?INDEX /.test(detail) ||
        (filters?.get(detail.split(' ')[1] ?? '')?.size ?? 0) > 0
      )
        faults.push(`scans (${detail})`)
    } else if (table !== '') {
      const { unique, condition } = indexes.get(index) ?? { unique: null, condition: '' }
      const searched = terms.split(' AND ')
      if (unique?.every((column) => searched.includes(`${column}=?`))) continue
      const rest = [...(filters?.get(table) ?? [])].filter(
        (column) =>
          !searched.some((term) => term.split(/\W+/).includes(column)) &&
          !new RegExp(`\\b${column}\\b`).test(condition) &&
          UNINDEXED[`${table}.${column}`] === undefined,
      )
      if (rest.length > 0) faults.push(`filters by ${rest.join(' and ')} (${detail})`)
    }
  }
  return faults
}

interface PlanNode {
  'Node Type': string
  'Relation Name'?: string
  Plans?: PlanNode[]
}

/** The database must not prefer to scan and sort: `enable_seqscan`, `enable_bitmapscan` and `enable_sort` are off. */
function postgresFaults(rows: readonly { 'QUERY PLAN': [{ Plan: PlanNode }] }[]): string[] {
  const faults: string[] = []
  const isSmall = ({ Plans = [], 'Relation Name': table }: PlanNode): boolean =>
    (table === undefined || SMALL.includes(table)) && Plans.every(isSmall)
  const visit = (node: PlanNode): void => {
    if (isSmall(node)) return
    if (/Seq Scan|Bitmap/.test(node['Node Type'])) faults.push(`scans ${node['Relation Name']}`)
    if (/Sort/.test(node['Node Type'])) faults.push('sorts')
    for (const child of node.Plans ?? []) visit(child)
  }
  for (const row of rows) visit(row['QUERY PLAN'][0].Plan)
  return faults
}

/** The columns in the conditions of a SELECT, by table; of those in subqueries too. */
function filtersOf(root: RootOperationNode): ReadonlyMap<string, ReadonlySet<string>> {
  const filters = new Map<string, Set<string>>()
  const add = (table: string, column: string): void => {
    filters.set(table, (filters.get(table) ?? new Set()).add(column))
  }
  const visit = (node: Node, tables: readonly string[], inCondition: boolean): void => {
    const [own = '', ...outer] = node.kind === 'SelectQueryNode' ? [tableOf(node), ...tables] : tables
    if (!filters.has(own)) filters.set(own, new Set())
    if (inCondition && node.kind === 'ReferenceNode') {
      const table = node.table === undefined ? own : nameIn(node.table)
      // A subquery has one row at a time of the tables around it.
      if (!outer.includes(table)) add(table, nameIn(node.column))
    }
    // Text of SQL names columns without quotes.
    if (inCondition && node.kind === 'RawNode' && Array.isArray(node.sqlFragments))
      for (const [name] of node.sqlFragments.join(' ').matchAll(/\b(?:status|models|path|expires_at)\b/g))
        add(own, name)
    for (const [key, below] of Object.entries(node)) {
      const isCondition = node.kind === 'SelectQueryNode' ? key === 'where' : inCondition
      for (const one of Array.isArray(below) ? below : [below])
        if (isNode(one)) visit(one, [own, ...outer], isCondition)
    }
  }
  visit({ ...root }, [], false)
  return filters
}

/** Whether it finds out where the rows that the next statement may look at end. */
function boundsNext(node: RootOperationNode): boolean {
  return 'offset' in node && JSON.stringify(node.offset).includes(`"value":${ROWS_LOOKED_AT_MAX - 1}`)
}

function tableOf(node: object): string {
  return 'from' in node ? nameIn(node.from) : ''
}

/** The first identifier below a node. */
function nameIn(node: unknown): string {
  if (!isNode(node)) return ''
  if (node.kind === 'IdentifierNode') return String(node.name)
  for (const below of Object.values(node).flat()) {
    const name = nameIn(below)
    if (name !== '') return name
  }
  return ''
}

function isNode(value: unknown): value is Node {
  return typeof value === 'object' && value !== null
}
