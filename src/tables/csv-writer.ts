// The one writer of CSV and TSV (RFC 4180): each row is one record, whatever its texts hold. A missing value is an
// empty cell and an empty text a quoted one, as in PostgreSQL.
import { type Cell, type Column, type CsvStyle, cellText, type Sink, type TableWriter } from './table.ts'

const BOM = '\ufeff'
/** The number of characters of a CSV file that are written at once. */
const BLOCK_CHARACTERS = 64 * 1024

/** Makes a function that turns the cells of a row into a record with its line end. */
function csvRecords({ delimiter, newline, spreadsheet }: CsvStyle): (cells: readonly Cell[]) => string {
  // A byte-order mark at the start of the file would be taken for the file's own. A spreadsheet may separate cells at
  // other characters than the delimiter.
  const own = `\\u${delimiter.charCodeAt(0).toString(16).padStart(4, '0')}`
  const quoted = new RegExp(`["\\r\\n\\ufeff${own}${spreadsheet ? ',;|\\t' : ''}]`)
  const field = (cell: Cell): string => {
    if (cell === null || cell === undefined) return ''
    const text = spreadsheet ? withGuards(cellText(cell), delimiter) : cellText(cell)
    return text === '' || quoted.test(text) ? `"${text.replaceAll('"', '""')}"` : text
  }
  return (cells) => {
    const record = cells.map(field).join(delimiter)
    // Readers skip an empty line.
    return (record === '' ? '""' : record) + newline
  }
}

/** Makes a record of a CSV report whose texts come from callers. */
export const spreadsheetRecord = csvRecords({
  delimiter: ',',
  newline: '\r\n',
  bom: false,
  spreadsheet: true,
})

export async function writeCsv(
  sink: Sink,
  columns: readonly Column[],
  style: CsvStyle,
): Promise<TableWriter> {
  const record = csvRecords(style)
  await sink.append((style.bom ? BOM : '') + record(columns.map(({ name }) => (name === '' ? null : name))))
  let waiting = ''
  return {
    async write({ cells }) {
      waiting += record(columns.map((_, i) => cells[i]))
      if (waiting.length < BLOCK_CHARACTERS) return
      const block = waiting
      waiting = ''
      await sink.append(block)
    },
    async end() {
      await sink.append(waiting)
      await sink.end()
    },
    abort: () => sink.abort(),
  }
}

// Keeps spreadsheets from running a text of a CSV file as a formula: an apostrophe is put before it, and taken away
// again when such a file is read. A formula begins with one of SIGNS, behind any number of blanks, control and invisible
// characters, which spreadsheets skip. It may begin within a text too: a program that separates cells at another
// character than the file does takes no notice of the quotes around the text. A number is no formula.
//
// Apostrophes count as skipped, so a text that has some gets one more, and `withoutGuards` restores every text.

/** The signs that begin a formula, also in the forms of Unicode that spreadsheets read as these. */
const SIGNS = '=+-@\uff1d\uff0b\uff0d\uff20\ufe66\ufe62\ufe63\ufe6b\u2212'
/** Ends of cells that are skipped as well (BLANK_ENDS), and others; a comma counts unless it is the delimiter. */
const BLANK_ENDS = '\t\r\n'
const ENDS = ';|"'
const SKIPPED = /['\p{Z}\p{C}]/u
const NUMBER = /^-?\d+([.,]\d+)?(e[+-]?\d+)?$/i

/** Guards a text against formulas, in a file whose cells end at `delimiter`. */
function withGuards(text: string, delimiter: string): string {
  if (NUMBER.test(text)) return text
  return cut(text, formulasIn(text, delimiter)).join("'")
}

/** Restores the text that `withGuards` was given. */
export function withoutGuards(text: string, delimiter: string): string {
  const [first = '', ...cells] = cut(text, formulasIn(text, delimiter))
  return first + cells.map((cell) => (cell.startsWith("'") ? cell.slice(1) : cell)).join('')
}

function cut(text: string, places: readonly number[]): string[] {
  if (places.length === 0) return [text]
  return [0, ...places].map((place, i) => text.slice(place, places[i]))
}

/** Finds the places where apostrophes belong, in one pass. */
function formulasIn(text: string, delimiter: string): number[] {
  const places: number[] = []
  const comma = delimiter === ',' ? OTHER : END
  let cellAt = 0
  /** Whether the cell (`isBlank`) and the text (`isHead`) have only skipped characters so far. */
  let isBlank = true
  let isHead = true
  let beginsWithTab = false
  for (let at = 0; at < text.length; at++) {
    const code = text.charCodeAt(at)
    let kind: number | undefined = OTHER
    if (code < ASCII.length) kind = code === COMMA ? comma : ASCII[code]
    else if (isBlank) kind = kindOf(text, at)
    if (kind === SKIP) continue
    if (kind === BLANK_END) {
      beginsWithTab ||= isHead && code !== LF
      cellAt = at + 1
      isBlank = true
      continue
    }
    if (isBlank && kind === SIGN) {
      // The text as a whole is also a cell.
      if (isHead && cellAt > 0) places.push(0)
      places.push(cellAt)
    } else if (isHead && beginsWithTab) places.push(0)
    isHead = false
    isBlank = kind === END
    if (isBlank) cellAt = at + 1
  }
  // A tab or CR at the beginning may be lost when a spreadsheet reads the rest.
  if (isHead && beginsWithTab) places.push(0)
  return places
}

const [OTHER, SKIP, BLANK_END, END, SIGN] = [0, 1, 2, 3, 4]
const LF = 10
const COMMA = 44

function kindOf(text: string, at: number): number {
  const character = String.fromCodePoint(text.codePointAt(at) ?? 0)
  if (SIGNS.includes(character)) return SIGN
  if (BLANK_ENDS.includes(character)) return BLANK_END
  if (ENDS.includes(character)) return END
  return SKIPPED.test(character) ? SKIP : OTHER
}

const ASCII = Uint8Array.from({ length: 128 }, (_, code) => kindOf(String.fromCharCode(code), 0))
