// Opens a table for reading, in the format that its name says.
import type { CsvOptions } from './csv-reader.ts'
import { openJsonl } from './jsonl-table.ts'
import type { ParquetLimits } from './parquet-reader.ts'
import { formatOf, TableError, type TableReader } from './table.ts'
import type { TableSource } from './table-bytes.ts'

/** Opens a table. `options`: of CSV or TSV; `memoryBytes`: the process's memory, which a Parquet file may fill. */
export async function openTable(
  source: TableSource,
  { memoryBytes, ...options }: CsvOptions & Pick<ParquetLimits, 'memoryBytes'> = {},
): Promise<TableReader> {
  // Each library is loaded when needed: most tables have the same format.
  switch (formatOf(source.name)) {
    case 'csv':
      return await (await import('./csv-reader.ts')).openCsv(source, options)
    case 'tsv': {
      const { openCsv } = await import('./csv-reader.ts')
      const table = await openCsv(source, { ...options, delimiter: options.delimiter ?? '\t' })
      // A CSV file with the same rows has commas.
      return { ...table, csv: { newline: '\n', bom: false, ...table.csv, delimiter: ',' } }
    }
    case 'jsonl':
      return await openJsonl(source)
    case 'parquet':
      return await (await import('./parquet-reader.ts')).openParquet(source, { memoryBytes })
    case undefined:
      throw new TableError(noFormat(source.name))
  }
}

export function noFormat(name: string): string {
  return `the name ${name} does not say a table format; it has to end with .csv, .tsv, .jsonl (each also with .gz or .zst) or .parquet`
}
