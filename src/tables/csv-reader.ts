// Reads CSV and TSV files (RFC 4180). An empty cell is a missing value and a quoted empty cell is an empty text, as in
// PostgreSQL. The byte-order mark, the line ends and the delimiter are detected, and kept when the table is written
// again.
import { Readable } from 'node:stream'
import { CsvError, type Parser, parse } from 'csv-parse'
import { withoutGuards } from './csv-writer.ts'
import {
  type Cell,
  type Column,
  type CsvStyle,
  cellText,
  checkNames,
  TableError,
  type TableReader,
} from './table.ts'
import { markedUtf16, refuseUtf16, type TableSource, tableBytes, tableHead } from './table-bytes.ts'

const BOM = '\ufeff'
/** The bytes at the beginning of a file from which encoding, line ends and delimiter are detected. */
const HEAD_BYTES = 64 * 1024
/** The longest record: a longer one comes from a quote that is not closed. */
const RECORD_CHARACTERS_MAX = 64 * 1024 * 1024

export interface CsvOptions {
  /** The delimiter of cells; absent: the one that occurs most in the header. */
  delimiter?: string | undefined
  /** Whether texts were guarded against formulas (csv-writer.ts), so that the guards are removed. */
  spreadsheet?: boolean | undefined
}

export async function openCsv(
  source: TableSource,
  { delimiter, spreadsheet = false }: CsvOptions = {},
): Promise<TableReader> {
  const head = await tableHead(source, HEAD_BYTES)
  const encoding = markedUtf16(head) ?? 'utf-8'
  if (encoding === 'utf-8') refuseUtf16(source.name, head)
  const style = styleOf(new TextDecoder(encoding, { ignoreBOM: true }).decode(head), delimiter)
  const records = (): AsyncGenerator<readonly Cell[]> =>
    readRecords(source, encoding, style.delimiter, spreadsheet)
  const columns = await readHeader(source.name, records())
  return {
    columns,
    csv: style,
    async *rows() {
      let header = true
      for await (const cells of records()) {
        if (!header) yield { cells }
        header = false
      }
    },
  }
}

function styleOf(head: string, delimiter: string | undefined): CsvStyle {
  const unquoted = head.replace(/"[^"]*"/g, '')
  const header = /^[^\r\n]*/.exec(unquoted)?.[0] ?? ''
  const count = (mark: string): number => header.split(mark).length
  const found = [',', ';', '\t', '|'].reduce((best, mark) => (count(mark) > count(best) ? mark : best))
  return {
    delimiter: delimiter ?? found,
    newline: unquoted.includes('\r\n') ? '\r\n' : '\n',
    bom: head.startsWith(BOM),
  }
}

async function readHeader(name: string, records: AsyncGenerator<readonly Cell[]>): Promise<Column[]> {
  const { value, done } = await records.next()
  await records.return(undefined)
  if (done === true) throw new TableError(`${name} is empty; its first line has to name the columns`)
  const columns = value.map((cell): Column => ({ name: cellText(cell), type: 'string' }))
  checkNames(name, columns)
  return columns
}

async function* readRecords(
  table: TableSource,
  encoding: string,
  delimiter: string,
  spreadsheet: boolean,
): AsyncGenerator<readonly Cell[]> {
  const parser = parse({
    delimiter,
    bom: true,
    skip_empty_lines: true,
    max_record_size: RECORD_CHARACTERS_MAX,
    // Most programs that write TSV use no quotes.
    relax_quotes: delimiter === '\t',
    cast(value, { quoting }) {
      if (value === '' && !quoting) return null
      return spreadsheet ? withoutGuards(value, delimiter) : value
    },
  })
  const source = Readable.from(decoded(table, encoding), { objectMode: false })
  source.on('error', (error) => parser.destroy(error))
  const records: Parser & AsyncIterable<readonly Cell[]> = source.pipe(parser)
  try {
    for await (const record of records) yield record
  } catch (error) {
    throw error instanceof CsvError ? invalid(table.name, error) : error
  } finally {
    source.destroy()
  }
}

/** The bytes of the file as UTF-8. A file in another encoding is an error: its text would be damaged silently. */
async function* decoded(source: TableSource, encoding: string): AsyncGenerator<Buffer> {
  const decoder = new TextDecoder(encoding, { fatal: true, ignoreBOM: true })
  let read = 0
  const text = (block?: Buffer): string => {
    try {
      return block === undefined ? decoder.decode() : decoder.decode(block, { stream: true })
    } catch {
      throw new TableError(
        `${source.name} is not UTF-8 text (near byte ${read}); convert it, for example with: iconv -f WINDOWS-1252 -t UTF-8 ${source.name}`,
      )
    }
  }
  for await (const block of tableBytes(source)) {
    const part = text(block)
    read += block.length
    yield encoding === 'utf-8' ? block : Buffer.from(part)
  }
  text()
}

const TWICE = 'a quote inside a quoted cell is written twice'
const PROBLEMS: Partial<Record<string, string>> = {
  CSV_RECORD_INCONSISTENT_FIELDS_LENGTH:
    'this row has more or fewer cells than the first line; quote cells that contain the delimiter, or name another delimiter',
  CSV_QUOTE_NOT_CLOSED: `a quoted cell does not end before the file does; ${TWICE}`,
  INVALID_OPENING_QUOTE:
    'a quote stands inside a cell that is not quoted; quote the cell, and write the quote twice',
  CSV_INVALID_CLOSING_QUOTE: `a quoted cell goes on after its closing quote; ${TWICE}`,
  CSV_MAX_RECORD_SIZE: `a cell is larger than ${RECORD_CHARACTERS_MAX / 1024 / 1024} MiB, as if a quote was not closed; ${TWICE}`,
}

function invalid(name: string, error: CsvError): TableError {
  const line = typeof error.lines === 'number' ? `, line ${error.lines}` : ''
  return new TableError(`${name}${line}: ${PROBLEMS[error.code] ?? error.message.replace(/\.$/, '')}`)
}
