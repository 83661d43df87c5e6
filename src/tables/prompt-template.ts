// Prompts with columns in them: Mustache templates, checked against the columns of a table before any row is read.
// A name is a column first, whatever characters it has; then a path into a column that holds objects.

import Mustache from 'mustache'
import { messageOf } from '../domain/errors.ts'
import { type Cell, type Column, cellText, shownName, TableError } from './table.ts'

export interface Template {
  (cells: readonly Cell[]): string
  /** The indexes of the columns that the template names. */
  columns: readonly number[]
}

/** Compiles a template. `option`: the option that has the text; `path`: the name of the table. */
export function compileTemplate(
  text: string,
  columns: readonly Column[],
  option: string,
  path: string,
): Template {
  /** The indexes of columns by their names in the template. */
  const used = new Map<string, number>()
  for (const { name, inSection } of namesOf(parse(text, option), option)) {
    const begin = name.slice(0, Math.max(0, name.indexOf('.')))
    const known = [name, begin].find((one) => one !== '' && indexOf(one, columns) !== -1)
    if (known !== undefined) used.set(known, indexOf(known, columns))
    // Inside a section, a name can be a field of the section's value.
    else if (!inSection) throw unknownColumn(name, columns, option, path)
  }
  const writer = new TextWriter()
  const render = (cells: readonly Cell[]): string => {
    const view: Record<string, Cell> = Object.create(null)
    for (const [name, i] of used) view[name] = cells[i]
    return writer.render(text, new RowContext(view), undefined, { escape: cellText })
  }
  return Object.assign(render, { columns: [...new Set(used.values())] })
}

/** The context of a row, whose columns may have dots in their names. */
class RowContext extends Mustache.Context {
  override lookup(name: string): Cell {
    const row: Record<string, Cell> = this.view
    return name in row ? row[name] : super.lookup(name)
  }
}

/** Writes all text without escapes: {{{x}}} and {{&x}} mean the same as {{x}}. */
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

/** The index of a column; -1 when there is none. Blanks around names are ignored, since Mustache removes them. */
function indexOf(name: string, columns: readonly Column[]): number {
  const exact = columns.findIndex((column) => column.name === name)
  return exact === -1 ? columns.findIndex((column) => column.name.trim() === name.trim()) : exact
}

/** The index of a column that an option names. Throws a TableError when there is none. */
export function columnIndex(name: string, columns: readonly Column[], option: string, path: string): number {
  const found = indexOf(name, columns)
  if (found === -1) throw unknownColumn(name, columns, option, path)
  return found
}

/** Throws where none of the templates, `text` among them, names a column: all requests would be the same. */
export function refuseSame(
  [template, ...others]: readonly (Template | undefined)[],
  text: string,
  columns: readonly Column[],
  option: string,
  path: string,
): void {
  if ([template, ...others].some((one) => one && one.columns.length > 0)) return
  const single = columns.find(({ name }) => text.includes(`{${name.trim()}}`))
  throw new TableError(
    `${option} names no column, so that each row would be asked the same; write a column as {{name}}${
      single === undefined
        ? `, for example {{${columns[0]?.name.trim()}}}`
        : `, with two braces: {{${single.name.trim()}}}`
    }. The columns of ${path} are ${listed(columns)}`,
  )
}

function unknownColumn(name: string, columns: readonly Column[], option: string, path: string): TableError {
  return new TableError(
    `${option} names the column "${name}", which ${path} does not have; its columns are ${listed(columns)}`,
  )
}

const LISTED_MAX = 30

function listed(columns: readonly Column[]): string {
  const names = columns
    .slice(0, LISTED_MAX)
    .map(({ name }) => (name === name.trim() && name !== '' ? shownName(name) : `"${shownName(name)}"`))
  const more = columns.length - names.length
  return names.join(', ') + (more > 0 ? ` and ${more} more` : '')
}

function parse(text: string, option: string): Mustache.TemplateSpans {
  try {
    return Mustache.parse(text)
  } catch (error) {
    throw new TableError(
      `${option} is not a valid template (${messageOf(error)}); write a column as {{name}}`,
    )
  }
}
