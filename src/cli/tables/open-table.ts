// Opens a table for reading or writing, in the format that its name says.

import {
  type Column,
  type CsvStyle,
  compressionOf,
  formatOf,
  type TableFormat,
  type TableReader,
  type TableWriter,
} from '../../tables/table.ts'
import { Failure } from '../terminal/failure.ts'
import type { CsvOptions } from './csv-table.ts'
import { openJsonl, writeJsonl } from './jsonl-table.ts'
import { PartialFile } from './partial-file.ts'

/** `options`: of a CSV or TSV file. */
export async function openTable(path: string, options: CsvOptions = {}): Promise<TableReader> {
  const format = formatOf(path)
  // The libraries are loaded when needed: most commands read no table.
  switch (format) {
    case 'csv':
      return await (await import('./csv-table.ts')).openCsv(path, options)
    case 'tsv': {
      const { openCsv } = await import('./csv-table.ts')
      const table = await openCsv(path, { ...options, delimiter: options.delimiter ?? '\t' })
      // A CSV file with the same rows has commas.
      return { ...table, csv: { newline: '\n', bom: false, ...table.csv, delimiter: ',' } }
    }
    case 'jsonl':
      return await openJsonl(path)
    case 'parquet':
      return await (await import('./parquet-reader.ts')).openParquet(path)
    case undefined:
      throw new Failure(
        `the name ${path} does not say a table format; it has to end with .csv, .tsv, .jsonl (each also with .gz or .zst) or .parquet`,
      )
  }
}

/** The format of a file that is to be written. */
export function formatOfOutput(path: string): TableFormat {
  const format = formatOf(path)
  if (compressionOf(path) !== null)
    throw new Failure(`a table is not written compressed; name another output than ${path}`)
  if (format !== undefined) return format
  throw new Failure(
    `the name ${path} does not say a table format; end it with .csv, .tsv, .jsonl or .parquet, or use --format`,
  )
}

/** A CSV file for spreadsheets is written in the form that they expect, whatever its input had. */
const FOR_SPREADSHEETS = { newline: '\r\n', bom: true, spreadsheet: true }

/** `style`: of the CSV file that the rows come from. */
export async function createTable(
  path: string,
  format: TableFormat,
  columns: readonly Column[],
  { spreadsheet, style }: { spreadsheet?: boolean | undefined; style?: CsvStyle | undefined } = {},
): Promise<TableWriter> {
  switch (format) {
    case 'csv':
    case 'tsv': {
      const { writeCsv } = await import('../../tables/csv-writer.ts')
      return await writeCsv(await PartialFile.create(path), columns, {
        ...(style ?? { newline: '\n', bom: false, delimiter: ',' }),
        ...(spreadsheet ? FOR_SPREADSHEETS : {}),
        ...(format === 'tsv' ? { delimiter: '\t' } : {}),
      })
    }
    case 'jsonl':
      return await writeJsonl(path, columns)
    case 'parquet':
      return (await import('../../tables/parquet-writer.ts')).writeParquet(
        await PartialFile.create(path),
        columns,
      )
  }
}
