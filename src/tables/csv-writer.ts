// CSV and TSV (RFC 4180). A missing value is an empty cell and an empty text a quoted one, as in PostgreSQL.
import { stringify } from 'csv-stringify/sync'
import { type Column, type CsvStyle, cellText, type Sink, type TableWriter } from './table.ts'

const BOM = '\ufeff'
const ROWS_PER_WRITE = 256

/** What a spreadsheet would run as a formula. */
const FORMULA = /^[=+\-@\t\r]/
const NUMBER = /^-?\d+(\.\d+)?(e[+-]?\d+)?$/i

export async function writeCsv(
  sink: Sink,
  columns: readonly Column[],
  style: CsvStyle,
): Promise<TableWriter> {
  // Only an empty text is quoted without need: a missing value is not.
  const options = { delimiter: style.delimiter, record_delimiter: style.newline, quoted_match: /^$/ }
  const shown = (text: string): string =>
    style.spreadsheet && FORMULA.test(text) && !NUMBER.test(text) ? `'${text}` : text
  let waiting: (string | null)[][] = [columns.map(({ name }) => (name === '' ? null : shown(name)))]
  const flush = async (): Promise<void> => {
    await sink.append(stringify(waiting, options))
    waiting = []
  }
  if (style.bom) await sink.append(BOM)
  return {
    async write({ cells }) {
      waiting.push(
        columns.map((_, i) =>
          cells[i] === null || cells[i] === undefined ? null : shown(cellText(cells[i])),
        ),
      )
      if (waiting.length >= ROWS_PER_WRITE) await flush()
    },
    async end() {
      await flush()
      await sink.end()
    },
    abort: () => sink.abort(),
  }
}
