// apply: brings projects to what a document says. It shows the plan, and then carries it out, project by project.
import { readFile } from 'node:fs/promises'
import type { Command } from 'commander'
import { messageOf } from '../../domain/errors.ts'
import { isRecord } from '../../domain/json-record.ts'
import { AppliedProject, type ProjectChange } from '../../wire/project.ts'
import { withApi } from '../client/connect.ts'
import type { JsonFlags, Shell } from '../shell.ts'
import { EXIT_DRIFT, Failure } from '../terminal/failure.ts'
import { examples, jsonCommand } from '../terminal/option-values.ts'
import { counted, type Output, printJson, writeLine } from '../terminal/terminal.ts'

interface ApplyFlags extends JsonFlags {
  file: string
  dryRun?: boolean
  prune?: boolean
}

export function addApply(program: Command, shell: Shell): void {
  examples(
    jsonCommand(program, 'apply', 'bring projects, their limits and webhooks to what a document says')
      .requiredOption('-f, --file <file>', 'the document, YAML or JSON')
      .option('--dry-run', 'show the plan alone; exit code 2 where something differs')
      .option('--prune', 'delete limits and webhooks of these projects that the document lacks')
      .action((flags: ApplyFlags) => apply(shell, flags)),
    'offpeak apply -f desired.yaml --dry-run',
    'offpeak apply -f desired.yaml --prune',
  )
}

async function apply(shell: Shell, flags: ApplyFlags): Promise<void> {
  const { stdout, stderr } = shell.terminal
  const projects = await projectsIn(flags.file)
  await withApi(shell, flags, async ({ client }) => {
    const bring = async (dry_run: boolean, applied: AppliedProject[] = []): Promise<AppliedProject[]> => {
      const query = new URLSearchParams({ dry_run: String(dry_run), prune: String(flags.prune ?? false) })
      for (const project of projects) {
        const call = client.post(AppliedProject, `/v1/projects/apply?${query}`, project)
        const named = call.catch((error: unknown) => {
          if (!(error instanceof Failure)) throw error
          throw new Failure(`${flags.file}, project ${text(project.name)}: ${error.message}`, error.exitCode)
        })
        applied.push(await named)
      }
      return applied
    }
    // All plans come first, so that an error in the last project prevents changes of the first.
    const planned = await bring(true)
    const changes = planned.flatMap(({ project, changes }) => changes.map((change) => ({ project, change })))
    if (!flags.json) for (const { project, change } of changes) writeLine(stdout, changeLine(project, change))
    const isDifferent = changes.length > 0
    if (flags.dryRun || !isDifferent) {
      if (flags.json) printJson(stdout, planned)
      else writeLine(stderr, isDifferent ? `${summary(changes)}; nothing was changed.` : 'Nothing differs.')
      if (isDifferent) shell.exit(EXIT_DRIFT)
      return
    }
    const applied: AppliedProject[] = []
    try {
      await bring(false, applied)
    } finally {
      // Secrets are shown this once, also where a later project fails.
      if (flags.json) printJson(stdout, applied)
      else for (const { changes } of applied) for (const change of changes) printSecret(stdout, change)
    }
    if (!flags.json) writeLine(stderr, `${summary(changes)}.`)
  })
}

/** The projects of the document, each in the form of the API. */
async function projectsIn(path: string): Promise<Record<string, unknown>[]> {
  const { parse } = await import('yaml')
  let document: unknown
  try {
    document = parse(await readFile(path, 'utf8'), { uniqueKeys: true, prettyErrors: true })
  } catch (error) {
    throw new Failure(`${path} cannot be read: ${messageOf(error)}`)
  }
  const { projects, ...others } = isRecord(document) ? document : {}
  if (!Array.isArray(projects) || !projects.every(isRecord) || projects.length === 0)
    throw new Failure(`${path} has no list of projects: projects: [{name: team-a, limits: [...]}]`)
  const [other] = Object.keys(others)
  if (other !== undefined) throw new Failure(`${path} has the key "${other}"; a document has projects alone`)
  const names = projects.map(({ name }) => name)
  const repeated = names.find((name, i) => names.indexOf(name) < i)
  if (repeated !== undefined) throw new Failure(`${path} has the project "${repeated}" twice`)
  return projects
}

const SIGNS = { create: '+', update: '~', delete: '-' } as const

/** The text of a change: `~ limit lim_… of team-a: amount 5 -> 10`. */
function changeLine(project: string, { action, kind, id, before, after }: ProjectChange): string {
  const name = kind === 'project' ? 'project' : `${kind}${action === 'create' ? '' : ` ${id}`} of`
  const fields = action === 'update' ? changedFields(before, after) : shownFields(after ?? before)
  return `${SIGNS[action]} ${name} ${project}: ${fields.join(', ')}`
}

const HIDDEN = ['id', 'object', 'created', 'secret', 'disabled_reason', 'unpriced_models']

function shownFields(one: unknown): string[] {
  const fields = Object.entries(isRecord(one) ? one : {}).filter(
    ([name, value]) => !HIDDEN.includes(name) && value !== null && JSON.stringify(value) !== '[]',
  )
  return fields.map(([name, value]) => `${name} ${text(value)}`)
}

function changedFields(before: unknown, after: unknown): string[] {
  const [old, now] = [before, after].map((one) => (isRecord(one) ? one : {}))
  const names = [...new Set([...Object.keys(old ?? {}), ...Object.keys(now ?? {})])]
  return names
    .filter((name) => !HIDDEN.includes(name) && text(old?.[name]) !== text(now?.[name]))
    .map((name) => `${name} ${text(old?.[name])} -> ${text(now?.[name])}`)
}

function text(value: unknown): string {
  return typeof value === 'string' ? value : JSON.stringify(value ?? null)
}

function printSecret(stdout: Output, { kind, action, id, after }: ProjectChange): void {
  if (kind !== 'webhook' || action !== 'create' || !isRecord(after)) return
  writeLine(stdout, `${id} ${text(after.url)}: its secret is ${text(after.secret)}, shown this once`)
}

function summary(changes: readonly { change: ProjectChange }[]): string {
  const of = (action: ProjectChange['action']): number =>
    changes.filter(({ change }) => change.action === action).length
  return `${counted(of('create'), 'object')} to create, ${of('update')} to change, ${of('delete')} to delete`
}
