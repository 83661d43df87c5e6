// models: lists, shows, pauses and resumes the models that lines can name.
import type { Command } from 'commander'
import { ModelObject, ModelPause } from '../../wire/model.ts'
import { modelPath } from '../client/check-order.ts'
import { addCall, addList } from '../client/object-commands.ts'
import type { Shell } from '../shell.ts'
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
