// Projects own everything; a project has the plan.
import { type Listed, listed, type Page } from './page.ts'
import type { ProjectRow } from './schema.ts'
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
