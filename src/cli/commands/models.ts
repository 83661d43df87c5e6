// models: shows the models that lines can name.
import type { Command } from 'commander'
import { ModelObject, ModelPause } from '../../wire/model.ts'
import { type ApiFlags, apiCommand, withApi } from '../client/api-command.ts'
import type { Shell } from '../shell.ts'
import { humanCount } from '../terminal/format.ts'
import { wholeNumber } from '../terminal/option-values.ts'
import { printFields, printJson, printTable } from '../terminal/table.ts'

export function addModels(program: Command, shell: Shell): void {
  const models = program
    .command('models')
    .description('show the models that lines can name; pause and resume them')
  const { stdout } = shell.terminal

  apiCommand(models, 'list', 'show every model')
    .option('--limit <number>', 'how many', wholeNumber(1), 100)
    .action((flags: ApiFlags & { limit: number }) =>
      withApi(shell, flags, async ({ client }) => {
        const found = await client.list(ModelObject, '/v1/models', flags.limit)
        if (flags.json) return printJson(stdout, found)
        printTable(stdout, ['ID', 'CONTEXT', 'INPUT/MTOK', 'OUTPUT/MTOK', 'SUPPORTS'], found.map(row))
      }),
    )

  apiCommand(models, 'get', 'show a model')
    .argument('<id>', 'ID of the model')
    .action((id: string, flags: ApiFlags) =>
      withApi(shell, flags, async ({ client }) => {
        // Slashes in an ID stay slashes in the path.
        const name = id.split('/').map(encodeURIComponent).join('/')
        const model = await client.get(ModelObject, `/v1/models/${name}`)
        if (flags.json) printJson(stdout, model)
        else printFields(stdout, model)
      }),
    )

  addPauses(models, shell)
}

/** Of the project's own batches. */
function addPauses(models: Command, shell: Shell): void {
  const { stdout } = shell.terminal
  for (const [action, description] of [
    ['pause', "send no lines of a model, of this project's batches, until it is resumed"],
    ['resume', 'go on with a paused model'],
  ] as const)
    apiCommand(models, action, description)
      .argument('<id>', 'ID of the model')
      .action((id: string, flags: ApiFlags) =>
        withApi(shell, flags, async ({ client }) => {
          const pause = await client.post(ModelPause, `/v1/models/${encodeURIComponent(id)}/${action}`)
          if (flags.json) printJson(stdout, pause)
          else printFields(stdout, pause)
        }),
      )
}

function row({ id, context_window, pricing, supports }: ModelObject): string[] {
  const price = (usd: number): string => (pricing.configured ? `$${usd}` : '-')
  return [
    id,
    context_window === null ? '-' : humanCount(context_window),
    price(pricing.input_per_mtok),
    price(pricing.output_per_mtok),
    [...(supports.structured_output ? ['structured output'] : []), ...(supports.tools ? ['tools'] : [])].join(
      ', ',
    ),
  ]
}
