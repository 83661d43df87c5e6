// models: shows the models that lines can name.
import type { Command } from 'commander'
import { ModelObject, ModelPause } from '../../wire/model.ts'
import { type ApiFlags, apiCommand, withApi } from '../client/api-command.ts'
import { ApiError } from '../client/api-error.ts'
import type { ApiClient } from '../client/client.ts'
import { AnyObject } from '../client/shapes.ts'
import type { Shell } from '../shell.ts'
import { Failure } from '../terminal/failure.ts'
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
        const model = await client.get(ModelObject, modelPath(id))
        if (flags.json) printJson(stdout, model)
        else printFields(stdout, model)
      }),
    )

  addPauses(models, shell)
}

/** Of the project's own batches. */
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
    const others = await client.list(ModelObject, '/v1/models', NAMED_MAX)
    const names = others.map(({ id }) => id).join(', ')
    throw new Failure(`there is no model "${model}"; models here are ${names || 'none'}`)
  }
}

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
