// Kinds of columns, and indexes with a condition, as migrations write them.
import { type ColumnDefinitionBuilder, type Kysely, sql } from 'kysely'

type Column = (column: ColumnDefinitionBuilder) => ColumnDefinitionBuilder

export const primary: Column = (column) => column.primaryKey()
export const required: Column = (column) => column.notNull()
export const counter: Column = (column) => column.notNull().defaultTo(0)
export const ofProject: Column = (column) => column.notNull().references('projects.id')

/** Kysely's builder binds no values into DDL, so the condition of a partial index is text. */
export async function index(
  db: Kysely<unknown>,
  name: string,
  table: string,
  columns: string,
  where?: string,
): Promise<void> {
  const condition = where === undefined ? sql`` : sql.raw(` WHERE ${where}`)
  await sql`CREATE INDEX ${sql.id(name)} ON ${sql.table(table)} (${sql.raw(columns)})${condition}`.execute(db)
}
