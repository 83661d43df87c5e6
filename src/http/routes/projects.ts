// /v1/projects: the projects and their plans. Operators see and change all of them; others see their own. GET
// /v1/quotas: the quotas of the caller's project, and their use.
import { unixSeconds } from '../../domain/clock.ts'
import { ApiError, invalidParam } from '../../domain/errors.ts'
import { newId } from '../../domain/ids.ts'
import { recordOf } from '../../domain/json-record.ts'
import { type Plan, QUOTA_NAMES, type QuotaName } from '../../domain/plan.ts'
import { sumQueuedTokens } from '../../store/ledger.ts'
import { ensureProject, isStored, listProjectsPage, readUse, setPlan } from '../../store/projects.ts'
import { readRow } from '../../store/rows.ts'
import type { ProjectRow } from '../../store/schema.ts'
import { sumPendingUploads } from '../../store/uploads.ts'
import { CreateProject, ProjectObject, QuotasObject, UpdateProject } from '../../wire/project.ts'
import { planOf } from '../access/caller.ts'
import { objectRoutes } from '../object-routes.ts'
import { type App, found, type RouteDependencies, route } from '../route.ts'

export function projectRoutes(app: App, { store, clock, plans }: RouteDependencies): void {
  const planRules = { body: { properties: { plan: { enum: [...plans.keys()] } } } }
  objectRoutes(app, '/v1/projects/:project_id', {
    access: ['keys:read', 'operator'],
    shape: ProjectObject,
    list: {
      summary: 'List projects',
      description: 'With the scope `operator` all of them; else the own one.',
    },
    one: { summary: 'Read a project' },
    async find({ project_id, scopes }, id) {
      const isVisible = id === project_id || scopes.has('operator')
      return isVisible ? await readRow(store.read, 'projects', { id }) : undefined
    },
    rows: ({ project_id, scopes }, page) =>
      listProjectsPage(store.read, { ...page, only: scopes.has('operator') ? null : project_id }),
    show: showProject,
  })

  route(app, 'POST /v1/projects', {
    access: ['operator'],
    operation: 'createProject',
    summary: 'Make a project',
    answer: ProjectObject,
    rules: planRules,
    errors: ['project_exists'],
    body: CreateProject,
    takesNoKey: true,
    async handler(request) {
      const { name } = request.body
      const plan = planNamed(plans, request.body.plan ?? [...plans.keys()][0] ?? '')
      const now = clock.now()
      const project = { id: newId('project', now), name, plan, created: now }
      return await store.write(async (tx) => {
        const isTaken = (await readRow(tx, 'projects', { name })) !== undefined
        const made = await ensureProject(tx, project)
        if (isTaken || made.id !== project.id)
          throw new ApiError('project_exists', `There is a project "${name}" already.`, { param: 'name' })
        return showProject(made)
      })
    },
  })

  route(app, 'POST /v1/projects/:project_id', {
    access: ['operator'],
    operation: 'updateProject',
    summary: 'Change the plan of a project',
    description: 'It holds for what is made from now on.',
    answer: ProjectObject,
    rules: planRules,
    body: UpdateProject,
    takesNoKey: true,
    async handler(request) {
      const plan = planNamed(plans, request.body.plan)
      return await store.write(async (tx) => {
        const project = found(
          await readRow(tx, 'projects', { id: request.params.project_id }),
          'project_not_found',
        )
        await setPlan(tx, project.id, plan)
        return showProject({ ...project, plan })
      })
    },
  })

  function showProject({ id, name, plan, created }: ProjectRow): ProjectObject {
    const quotas = plans.get(plan)?.quotas ?? {}
    return { id, object: 'project', name, plan, quotas: { ...quotas }, created: unixSeconds(created) }
  }
}

/** Checks the name of a plan. Throws invalid_request. */
export function planNamed(plans: ReadonlyMap<string, Plan>, name: string): string {
  if (plans.has(name)) return name
  const known = [...plans.keys()].map((plan) => `"${plan}"`).join(' or ')
  throw invalidParam('plan', `\`plan\` must be ${known}.`)
}

export function quotaRoute(
  app: App,
  { store, plans, incoming, downloads, streams }: RouteDependencies,
): void {
  route(app, 'GET /v1/quotas', {
    access: 'any key',
    operation: 'getQuotas',
    summary: 'Read the quotas of the project and their use',
    description:
      'Each API process counts uploads, downloads and streams by itself. A call that would exceed a quota is answered with 429 `quota_exceeded`.',
    answer: QuotasObject,
    async handler(_request, caller) {
      const plan = planOf(plans, caller)
      const { project_id } = caller
      const pending = await sumPendingUploads(store.read, project_id)
      const queued = await sumQueuedTokens(store.read, project_id)
      const used: Partial<Record<QuotaName, number>> = {
        queued_tokens: Math.max(0, ...queued.values()),
        ...(await readUse(store.read, project_id, QUOTA_NAMES.filter(isStored))),
        uploads: incoming.files(project_id) + pending.uploads,
        downloads: downloads.used(project_id),
        streams: streams.used(project_id),
      }
      return {
        object: 'quotas' as const,
        plan: plan.name,
        completion_windows: plan.completion_windows.map(({ text }) => text),
        live_price_share: plan.live_price_share,
        quotas: recordOf(QUOTA_NAMES, (name) => ({
          limit: plan.quotas[name],
          used: used[name] ?? null,
          ...(name === 'queued_tokens' && { by_model: Object.fromEntries(queued) }),
        })),
      }
    },
  })
}
