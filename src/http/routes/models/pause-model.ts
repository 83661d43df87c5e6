// POST /v1/models/{model}/pause and …/resume
import { Type } from 'typebox'
import { unixSeconds } from '../../../domain/clock.ts'
import { ApiError } from '../../../domain/errors.ts'
import { listPausedModels, pauseModel, resumeModel } from '../../../store/pauses.ts'
import { ModelPause } from '../../../wire/model.ts'
import { callerOf } from '../../access/caller.ts'
import { route } from '../../route.ts'
import type { RouteDependencies } from '../../route-dependencies.ts'
import type { App } from '../../type-provider.ts'

type Deps = Pick<RouteDependencies, 'store' | 'clock' | 'models' | 'wake'>

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

export function pauseModelRoutes(app: App, { store, clock, models, wake }: Deps): void {
  for (const { action, operation, summary, description } of ACTIONS) {
    route(app, {
      method: 'POST',
      url: `/v1/models/:model/${action}`,
      access: ['batches:write'],
      doc: { operation, summary, description, answer: ModelPause, errors: ['model_not_found'] },
      accepts: {
        params: Type.Object({
          model: Type.String({ description: 'The ID of the model; a slash in it is written `%2F`.' }),
        }),
      },
      async handler(request) {
        const { project_id } = callerOf(request)
        const { model } = request.params
        const paused_at = await store.write(async (tx) => {
          const paused = await listPausedModels(tx, project_id)
          const known = paused.find((one) => one.model === model)
          if (!models.has(model) && !known)
            throw new ApiError('model_not_found', undefined, { param: 'model' })
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
