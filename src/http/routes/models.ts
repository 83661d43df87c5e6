// Lists and shows models, and pauses them for a project.
import { unixSeconds } from '../../domain/clock.ts'
import type { Model } from '../../domain/model.ts'
import type { Rates } from '../../domain/money.ts'
import { listPausedModels, pauseModel, resumeModel } from '../../store/pauses.ts'
import { ModelObject, ModelPause } from '../../wire/model.ts'
import { listOf, PageQuery, text } from '../../wire/shape.ts'
import { readPage } from '../object-routes.ts'
import { type App, found, type RouteDependencies, route } from '../route.ts'

const ACTIONS = [
  {
    action: 'pause',
    operation: 'pauseModel',
    summary: "Pause a model for the project's batches",
    description:
      'No line of the project that names the model is sent until it is resumed; lines in flight may finish, and other projects are not affected. Windows go on.',
  },
  {
    action: 'resume',
    operation: 'resumeModel',
    summary: 'Resume a paused model',
    description: 'Lines that name it are sent again.',
  },
] as const

/** Pico-dollars per token in a dollar per million tokens. */
const PICOS_PER_USD_PER_MTOK = 1_000_000

export function modelRoutes(app: App, { models, region, store, clock, wake }: RouteDependencies): void {
  route(app, 'GET /v1/models', {
    access: 'any key',
    operation: 'listModels',
    summary: 'List models',
    answer: listOf(ModelObject),
    query: PageQuery,
    async handler(request) {
      // Sorting is stable: models of the same age stay in the order of the configuration.
      const newestFirst = [...models.values()].sort((a, b) => b.created - a.created)
      return await readPage(request.query, {
        find: async (id) => models.get(id),
        list: async ({ limit, order, behind }) => {
          const models = order === 'asc' ? newestFirst.toReversed() : newestFirst
          const start = models.findIndex((model) => model.id === behind) + 1
          return { rows: models.slice(start, start + limit), lookedTo: null }
        },
        show: (model) => showModel(model, region),
      })
    },
  })

  route(app, 'GET /v1/models/*', {
    access: 'any key',
    operation: 'getModel',
    summary: 'Read a model, its features and its price',
    answer: ModelObject,
    params: { '*': text('The ID of the model.') },
    handler: async ({ params }) =>
      showModel(found(models.get(params['*']), 'model_not_found', { param: 'model' }), region),
  })

  for (const { action, ...doc } of ACTIONS) {
    route(app, `POST /v1/models/:model/${action}`, {
      access: ['batches:write'],
      ...doc,
      answer: ModelPause,
      params: { model: text('The ID of the model; a slash in it is written `%2F`.') },
      async handler({ params: { model } }, { project_id }) {
        const paused_at = await store.write(async (tx) => {
          const paused = await listPausedModels(tx, project_id)
          const known = paused.find((one) => one.model === model)
          if (!known) found(models.get(model), 'model_not_found', { param: 'model' })
          if (action === 'resume') {
            if (known) await resumeModel(tx, project_id, model)
            return null
          }
          const at = known?.paused_at ?? clock.now()
          if (!known) await pauseModel(tx, { project_id, model, paused_at: at })
          return at
        })
        wake()
        return { id: model, object: 'model.pause' as const, paused_at: paused_at && unixSeconds(paused_at) }
      },
    })
  }
}

function showModel(model: Model, region: string): ModelObject {
  const { above, service_tiers } = model.price
  return {
    id: model.id,
    object: 'model',
    created: model.created,
    owned_by: 'offpeak',
    region,
    context_window: model.context_window,
    max_output_tokens: model.max_output_tokens,
    supports: { ...model.supports },
    endpoints: [...model.endpoints],
    pricing: {
      ...showRates(model.price),
      service_tiers:
        service_tiers && Object.fromEntries([...service_tiers].map(([tier, own]) => [tier, showRates(own)])),
      above: above?.map((step) => ({ prompt_tokens: step.prompt_tokens, ...showRates(step) })),
      currency: 'USD',
      configured: model.priced,
    },
  }
}

function showRates(rates: Rates) {
  const usd = (picos: number): number => picos / PICOS_PER_USD_PER_MTOK
  const { input_picos, output_picos, cached_input_picos, cache_write_picos, cache_write_1h_picos } = rates
  return {
    input_per_mtok: usd(input_picos),
    output_per_mtok: usd(output_picos),
    cached_input_per_mtok: cached_input_picos && usd(cached_input_picos),
    cache_write_per_mtok: cache_write_picos && usd(cache_write_picos),
    cache_write_1h_per_mtok: cache_write_1h_picos && usd(cache_write_1h_picos),
  }
}
