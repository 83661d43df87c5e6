// Prompts with columns in them: Mustache templates, checked against the columns of a table before any row is read.
// A name is a column first, whatever characters it has; then a path into a column that holds objects.

import Mustache from 'mustache'
import { type Cell, type Column, cellText, shownName, TableError } from './table.ts'

export interface Template {
  (cells: readonly Cell[]): string
  /** Indexes of the columns that it names. */
  columns: readonly number[]
}

/** `option` is what the text comes from, `path` the name of the table. */
export function compileTemplate(
  text: string,
  columns: readonly Column[],
  option: string,
  path: string,
): Template {
  const used = new Set<number>()
  for (const { name, inSection } of namesOf(parse(text, option), option)) {
    const column = columnNamed(name, columns)
    if (column !== -1) used.add(column)
    // Inside a section, a name can be a field of what the section is about.
    else if (!inSection) throw unknownColumn(name, columns, option, path)
  }
  const writer = new TextWriter()
  const render = (cells: readonly Cell[]): string => {
    const view: Record<string, Cell> = Object.create(null)
    for (const i of used) view[columns[i]?.name ?? ''] = cells[i]
    return writer.render(text, new RowContext(view), undefined, { escape: cellText })
  }
  return Object.assign(render, { columns: [...used] })
}

/** A column may have dots in its name. */
class RowContext extends Mustache.Context {
  override lookup(name: string): Cell {
    const row: Record<string, Cell> = this.view
    return name in row ? row[name] : super.lookup(name)
  }
}

/** All text is sent as it is: {{{x}}} and {{&x}} mean the same as {{x}}. */
class TextWriter extends Mustache.Writer {
  override unescapedValue([, name = '']: string[], context: Mustache.Context): string {
    return cellText(context.lookup(name))
  }
}

function* namesOf(
  tokens: Mustache.TemplateSpans,
  option: string,
  inSection = false,
): Generator<{ name: string; inSection: boolean }> {
  for (const [kind, name, , , inner] of tokens) {
    if (kind === '>')
      throw new TableError(`${option} includes another template ({{> ${name}}}), which a prompt cannot`)
    if (kind === 'name' || kind === '&' || kind === '#' || kind === '^') yield { name, inSection }
    if (Array.isArray(inner)) yield* namesOf(inner, option, true)
  }
}

/** -1 when there is none. A name with dots is a path into a column, if it is not the name of one. */
function columnNamed(name: string, columns: readonly Column[]): number {
  const exact = columns.findIndex((column) => column.name === name)
  const dot = name.indexOf('.')
  if (exact !== -1 || dot < 1) return exact
  return columns.findIndex((column) => column.name === name.slice(0, dot))
}

/** The index of a column that an option names. */
export function columnIndex(name: string, columns: readonly Column[], option: string, path: string): number {
  const found = columns.findIndex((column) => column.name === name)
  if (found === -1) throw unknownColumn(name, columns, option, path)
  return found
}

function unknownColumn(name: string, columns: readonly Column[], option: string, path: string): TableError {
  return new TableError(
    `${option} names the column "${name}", which ${path} does not have; its columns are ${listed(columns)}`,
  )
}

const LISTED_MAX = 30

function listed(columns: readonly Column[]): string {
  const names = columns.slice(0, LISTED_MAX).map(({ name }) => shownName(name) || '""')
  const more = columns.length - names.length
  return names.join(', ') + (more > 0 ? ` and ${more} more` : '')
}

function parse(text: string, option: string): Mustache.TemplateSpans {
  try {
    return Mustache.parse(text)
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error)
    throw new TableError(`${option} is not a valid template (${reason}); write a column as {{name}}`)
  }
}
