// Reads the options of `run` that start a model server: `--model FILE.gguf`, and `--engine NAME --model NAME`.
import { accessSync, constants, existsSync, statSync } from 'node:fs'
import { freemem } from 'node:os'
import { basename, delimiter, join, resolve } from 'node:path'
import type { Command } from 'commander'
import type { Config } from '../config/config.ts'
import { type GgufModel, readGguf } from '../engines/gguf.ts'
import { commandOf, RECIPES, type Recipe, slotsOf } from '../engines/recipes.ts'
import { jsonLines } from '../jsonl/byte-lines.ts'
import { LineScanner } from '../jsonl/line-scan.ts'
import { tableBytes } from '../tables/table-bytes.ts'
import type { Environment } from './shell.ts'
import { fileSource } from './tables/open-table.ts'
import { Failure } from './terminal/failure.ts'

const GGUF = /\.gguf$/i
const START_TIMEOUT_MS = 30 * 60_000
/** The most starts of a server, few because the user waits: a server that does not start is reported soon. */
const STARTS_MAX = 3
const IDLE_TIMEOUT_MS = 10 * 60_000
/** The tokens of a table row's request with its answer. */
const TABLE_TOKENS = 4096

export interface EngineFlags {
  engine?: string
  model?: string
}

export interface RunEngine {
  /** The name of the model in requests that the run makes. */
  model: string
  apply(config: Config, now: number): Config
}

export function withEngineFlags(command: Command): Command {
  return command.option(
    '--engine <name>',
    `start this model server for the run: ${RECIPES.map(({ name }) => name).join(', ')}; --model names its model`,
  )
}

/** The engine for a run; null where none is to be started. `input`: a file of requests; null: a table. */
export async function runEngine(
  flags: EngineFlags,
  input: string | null,
  env: Environment,
): Promise<RunEngine | null> {
  const recipe = recipeOf(flags)
  if (recipe === null) return null
  const { model } = flags
  if (model === undefined)
    throw new Failure(`--engine ${recipe.name} needs --model, the model that ${recipe.title} is to load`)
  const [wanted = ''] = recipe.command
  const program = findProgram(wanted, env[recipe.variable], env.PATH)
  if (program === null)
    throw new Failure(
      `${recipe.title} is not installed: there is no ${env[recipe.variable] ?? `${wanted} on the PATH`}; ` +
        `${recipe.install}, or set ${recipe.variable} to the program`,
    )
  const file = recipe.name === 'llama.cpp' ? await modelFile(model) : null
  const needs = input === null ? { models: [], tokens: TABLE_TOKENS } : await requestNeeds(input)
  const id = file === null ? model : basename(model).replace(GGUF, '')
  // Loaded only by a run that starts a server: the module loads the schema of the configuration.
  const { withEngine } = await import('../config/upstream-models.ts')
  return {
    model: id,
    apply(config, now) {
      const hasGpu = recipe.usesGpu && config.engines.gpus.length > 0
      const { slots, contextEach } = slotsOf(file, needs.tokens, { freeBytes: freemem(), hasGpu })
      const { concurrency } = recipe
      const order = {
        engine: {
          command: commandOf(recipe, {
            program,
            model: file === null ? model : resolve(model),
            name: id,
            slots,
            context: slots * contextEach,
          }),
          env: recipe.env,
          pass_env: recipe.pass_env,
          files: recipe.files,
          ready: recipe.ready,
          start_timeout_ms: START_TIMEOUT_MS,
          starts_max: STARTS_MAX,
          idle_timeout_ms: IDLE_TIMEOUT_MS,
          gpus: 0,
          memory_bytes: 0,
        },
        name: wanted,
        ids: [...new Set([...needs.models, id])],
        model: recipe.takesAnyName ? null : model,
        concurrency_max: 'total' in concurrency ? concurrency.total : concurrency.perSlot * slots,
      }
      return withEngine(config, order, Math.floor(now / 1000))
    },
  }
}

function recipeOf({ engine, model }: EngineFlags): Recipe | null {
  const name = engine ?? (model !== undefined && GGUF.test(model) ? 'llama.cpp' : undefined)
  if (name === undefined) return null
  const found = RECIPES.find((one) => one.name === name || one.name.replace('.', '') === name)
  if (found) return found
  throw new Failure(`there is no engine ${name}; there are ${RECIPES.map((one) => one.name).join(', ')}`)
}

async function modelFile(path: string): Promise<GgufModel> {
  if (!existsSync(path)) throw new Failure(`--model: there is no file ${path}`)
  const model = await readGguf(path)
  if (model === null) throw new Failure(`--model: ${path} is no GGUF file, which llama.cpp needs`)
  return model
}

/** The path of a program, from its variable or the PATH. */
function findProgram(name: string, named: string | undefined, path: string | undefined): string | null {
  if (named !== undefined && named.trim() !== '') return isExecutable(named) ? named : null
  const folders = (path ?? '').split(delimiter).filter(Boolean)
  return folders.map((folder) => join(folder, name)).find(isExecutable) ?? null
}

function isExecutable(path: string): boolean {
  try {
    accessSync(path, constants.X_OK)
    return statSync(path).isFile()
  } catch {
    return false
  }
}

// Reads what a model server needs for the requests of a file: the names of the model, and the tokens of the longest
// request with its answer.

/** The most bytes of a file of requests that are read, from its beginning. */
const BYTES_READ_MAX = 64 * 1024 * 1024
/** The bytes of a token at least, except in rare cases. */
const BYTES_PER_TOKEN = 3
/** The tokens of an answer whose request has no limit. */
const ANSWER_TOKENS = 1024

interface RequestNeeds {
  models: string[]
  tokens: number
}

/** Reads the models and the longest request of a file. Invalid lines are left to the service, which reports them. */
async function requestNeeds(path: string): Promise<RequestNeeds> {
  const scanner = new LineScanner({ validated: true })
  const models = new Set<string>()
  let tokens = 0
  let read = 0
  for await (const { line } of jsonLines(tableBytes(await fileSource(path)))) {
    read += line.length
    if (read > BYTES_READ_MAX) break
    const scanned = scanner.scan(line, 0, line.length)
    if (!scanned.ok) continue
    const { model, fields } = scanned.body
    if (model !== null) models.add(model)
    const limitOf = (name: string): number | null | undefined => fields.get(name)?.number
    const answer = limitOf('max_completion_tokens') ?? limitOf('max_tokens') ?? ANSWER_TOKENS
    tokens = Math.max(tokens, Math.ceil(line.length / BYTES_PER_TOKEN) + answer)
  }
  return { models: [...models], tokens }
}
