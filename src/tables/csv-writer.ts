// The one writer of CSV and TSV (RFC 4180): each row is one record, whatever its texts hold. A missing value is an
// empty cell and an empty text a quoted one, as in PostgreSQL.
import { withGuards } from './formula-guard.ts'
import { type Cell, type Column, type CsvStyle, cellText, type Sink, type TableWriter } from './table.ts'

const BOM = '\ufeff'
/** As much text is handed on at a time. */
const BLOCK_CHARACTERS = 64 * 1024

/** Makes a record of the cells of a row, with its line end. */
export function csvRecords({
  delimiter,
  newline,
  spreadsheet,
}: CsvStyle): (cells: readonly Cell[]) => string {
  // A byte-order mark at the start of the file would be taken for the file's own. In a spreadsheet, other characters
  // may separate cells than the delimiter.
  const own = `\\u${delimiter.charCodeAt(0).toString(16).padStart(4, '0')}`
  const quoted = new RegExp(`["\\r\\n\\ufeff${own}${spreadsheet ? ',;|\\t' : ''}]`)
  const field = (cell: Cell): string => {
    if (cell === null || cell === undefined) return ''
    const text = spreadsheet ? withGuards(cellText(cell), delimiter) : cellText(cell)
    return text === '' || quoted.test(text) ? `"${text.replaceAll('"', '""')}"` : text
  }
  return (cells) => {
    const record = cells.map(field).join(delimiter)
    // Readers pass over an empty line.
    return (record === '' ? '""' : record) + newline
  }
}

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
