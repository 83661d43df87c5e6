// Opens a table for reading or writing, in the format that its name says.
import { openAsBlob } from 'node:fs'
import type { CsvOptions } from '../../tables/csv-reader.ts'
import { openTable as openSource } from '../../tables/open-table.ts'
import {
  type Column,
  type CsvStyle,
  compressionOf,
  formatOf,
  type TableFormat,
  type TableReader,
  type TableWriter,
} from '../../tables/table.ts'
import type { TableSource } from '../../tables/table-bytes.ts'
import { checkInput } from '../client/upload.ts'
import { PartialFile } from '../output-file.ts'
import { EXIT_FAILED, Failure } from '../terminal/failure.ts'

export async function fileSource(path: string): Promise<TableSource> {
  await checkInput(path)
  const blob = await openAsBlob(path)
  return {
    name: path,
    byteLength: blob.size,
    async slice(start, end = blob.size) {
      // Node reads no slice of an empty file.
      if (start === end) return new ArrayBuffer(0)
      try {
        return await blob.slice(start, end).arrayBuffer()
      } catch (error) {
        throw new Failure(`${path} cannot be read; has it changed meanwhile?`, EXIT_FAILED, { cause: error })
      }
    },
  }
}

/** Opens a table file. `options`: of a CSV or TSV file. */
export async function openTable(path: string, options: CsvOptions = {}): Promise<TableReader> {
  return await openSource(await fileSource(path), options)
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

/** The style of a CSV file for spreadsheets, whatever style its input has. */
const FOR_SPREADSHEETS = { newline: '\r\n', bom: true, spreadsheet: true }

/** Creates a table file. `style`: of the CSV file with the rows. */
export async function createTable(
  path: string,
  format: TableFormat,
  columns: readonly Column[],
  { spreadsheet, style }: { spreadsheet?: boolean | undefined; style?: CsvStyle | undefined } = {},
): Promise<TableWriter> {
  const file = await PartialFile.create(path)
  switch (format) {
    case 'csv':
    case 'tsv': {
      const { writeCsv } = await import('../../tables/csv-writer.ts')
      return await writeCsv(file, columns, {
        ...(style ?? { newline: '\n', bom: false, delimiter: ',' }),
        ...(spreadsheet ? FOR_SPREADSHEETS : {}),
        ...(format === 'tsv' ? { delimiter: '\t' } : {}),
      })
    }
    case 'jsonl':
      return (await import('../../tables/jsonl-table.ts')).writeJsonl(file, columns)
    case 'parquet':
      return (await import('../../tables/parquet-writer.ts')).writeParquet(file, columns)
  }
}
