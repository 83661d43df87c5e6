// models: lists, shows, pauses and resumes the models that lines can name.
import type { Command } from 'commander'
import { ModelObject, ModelPause } from '../../wire/model.ts'
import { AnyObject, type ApiClient, ApiError } from '../client/client.ts'
import { addCall, addList } from '../client/object-commands.ts'
import type { Shell } from '../shell.ts'
import { Failure } from '../terminal/failure.ts'
import { humanCount } from '../terminal/terminal.ts'

export function addModels(program: Command, shell: Shell): void {
  const models = program
    .command('models')
    .description('show the models that lines can name; pause and resume them')

  addList(shell, models, 'list', {
    description: 'show every model',
    shape: ModelObject,
    path: () => '/v1/models',
    count: 100,
    columns: {
      ID: ({ id }) => id,
      CONTEXT: ({ context_window }) => (context_window === null ? '-' : humanCount(context_window)),
      'INPUT/MTOK': ({ pricing }) => price(pricing, pricing.input_per_mtok),
      'OUTPUT/MTOK': ({ pricing }) => price(pricing, pricing.output_per_mtok),
      SUPPORTS: ({ supports }) =>
        [
          ...(supports.structured_output ? ['structured output'] : []),
          ...(supports.tools ? ['tools'] : []),
        ].join(', '),
    },
  })

  addCall(shell, models, 'get', {
    description: 'show a model',
    argument: 'ID of the model',
    call: (id) => (client) => client.get(ModelObject, modelPath(id)),
  })

  for (const [action, description] of [
    ['pause', "send no lines of a model, of this project's batches, until it is resumed"],
    ['resume', 'go on with a paused model'],
  ] as const)
    addCall(shell, models, action, {
      description,
      argument: 'ID of the model',
      call: (id) => (client) => client.post(ModelPause, `/v1/models/${encodeURIComponent(id)}/${action}`),
    })
}

function price({ configured }: ModelObject['pricing'], usd: number): string {
  return configured ? `$${usd}` : '-'
}

/** Slashes in an ID stay slashes in the path. */
function modelPath(id: string): string {
  return `/v1/models/${id.split('/').map(encodeURIComponent).join('/')}`
}

const NAMED_MAX = 20

/** Throws for a model that the service does not have: otherwise every line would fail. */
export async function checkModel(client: ApiClient, { model }: { model?: string }): Promise<void> {
  if (model === undefined) return
  try {
    await client.get(AnyObject, modelPath(model))
  } catch (error) {
    if (!(error instanceof ApiError) || error.status !== 404) throw error
    throw new Failure(`there is no model "${model}"; models here are ${await modelNames(client)}`)
  }
}

/** The models that lines can name: `a, b and 3 more`. */
export async function modelNames(client: ApiClient): Promise<string> {
  const found = await client.list(ModelObject, '/v1/models', NAMED_MAX + 1)
  if (found.length === 0) return 'none'
  const names = found.slice(0, NAMED_MAX).map(({ id }) => id)
  return `${names.join(', ')}${found.length > NAMED_MAX ? ' and others ("offpeak models list")' : ''}`
}
