// Projects own everything; a project has the plan.
import { sql } from 'kysely'
import { OPEN_STATUSES_SQL } from './batches.ts'
import { type Listed, listed, type Page } from './page.ts'
import type { ProjectRow } from './schema.ts'
import { exactSum } from './sql-parts.ts'
import type { Reader, Writer } from './store.ts'

export async function readProject(db: Reader, id: string): Promise<ProjectRow | undefined> {
  return await db.selectFrom('projects').selectAll().where('id', '=', id).executeTakeFirst()
}

export async function readProjectByName(db: Reader, name: string): Promise<ProjectRow | undefined> {
  return await db.selectFrom('projects').selectAll().where('name', '=', name).executeTakeFirst()
}

/** Ordered by ID. */
export async function listProjects(db: Reader): Promise<ProjectRow[]> {
  return await db.selectFrom('projects').selectAll().orderBy('id').execute()
}

/** All of them, or the one with the ID `only`. */
export async function listProjectsPage(
  db: Reader,
  page: Page & { only: string | null },
): Promise<Listed<ProjectRow>> {
  const { only } = page
  const all = db.selectFrom('projects').selectAll()
  return await listed(only === null ? all : all.where('id', '=', only), 'id', page)
}

/** Adds the project, or gives the one that has its name already. */
export async function ensureProject(tx: Writer, project: ProjectRow): Promise<ProjectRow> {
  await tx
    .insertInto('projects')
    .values(project)
    .onConflict((oc) => oc.column('name').doNothing())
    .execute()
  return await tx
    .selectFrom('projects')
    .selectAll()
    .where('name', '=', project.name)
    .executeTakeFirstOrThrow()
}

export async function setPlan(tx: Writer, id: string, plan: string): Promise<void> {
  await tx.updateTable('projects').set({ plan }).where('id', '=', id).execute()
}

// How much of its quotas a project uses.

/** Until the transaction ends, no other that asks for the same can add to what the project has. */
export async function lockProject(tx: Writer, project_id: string): Promise<void> {
  await tx.selectFrom('projects').select('id').where('id', '=', project_id).forNoKeyUpdate().execute()
}

/** Of files that their users can see. */
export async function sumStoredBytes(db: Reader, project_id: string): Promise<number> {
  const { bytes } = await db
    .selectFrom('files')
    .select(exactSum('bytes').as('bytes'))
    .where('project_id', '=', project_id)
    .where('deleted_at', 'is', null)
    .executeTakeFirstOrThrow()
  return bytes
}

/** Unfinished batches, and their unfinished lines. */
export async function sumOpenBatches(
  db: Reader,
  project_id: string,
): Promise<{ batches: number; lines: number }> {
  return await db
    .selectFrom('batches')
    .select((eb) => [
      eb.fn.countAll<number>().as('batches'),
      sql<number>`CAST(coalesce(sum(total - completed - failed), 0) AS bigint)`.as('lines'),
    ])
    .where('project_id', '=', project_id)
    .where('status', 'in', OPEN_STATUSES_SQL)
    .executeTakeFirstOrThrow()
}

export async function countLimits(db: Reader, project_id: string): Promise<number> {
  const { rows } = await db
    .selectFrom('limits')
    .select((eb) => eb.fn.countAll<number>().as('rows'))
    .where('project_id', '=', project_id)
    .executeTakeFirstOrThrow()
  return rows
}
