// Parquet files, read row group by row group; a large row group in parts, so that memory does not depend on its size.
import { brotliDecompressSync, gunzipSync, zstdDecompressSync } from 'node:zlib'
import {
  type Compressors,
  type FileMetaData,
  parquetMetadataAsync,
  parquetRead,
  parquetSchema,
} from 'hyparquet'
import { compressors as every } from 'hyparquet-compressors'
import { messageOf } from '../domain/errors.ts'
import { Slots } from '../domain/project-queue.ts'
import { cellOf, parquetColumn, TIME_PARSERS } from './parquet-columns.ts'
import {
  type Cell,
  type Column,
  checkNames,
  type ParquetColumn,
  type Row,
  TableError,
  type TableReader,
} from './table.ts'
import type { TableSource } from './table-bytes.ts'

const PART_BYTES = 16 * 1024 * 1024

/** The largest page in bytes: pages have about a megabyte, and a larger one may be made to fill the memory. */
const PAGE_BYTES_MAX = 256 * 1024 * 1024

/** The decompressors of pages; Node's write no more than the page's declared length. */
const DECOMPRESSORS: Compressors = {
  ...every,
  GZIP: (input, maxOutputLength) => gunzipSync(input, { maxOutputLength }),
  BROTLI: (input, maxOutputLength) => brotliDecompressSync(input, { maxOutputLength }),
  ZSTD: (input, maxOutputLength) => zstdDecompressSync(input, { maxOutputLength }),
}

export interface ParquetLimits {
  /** The decoded size in bytes of the rows that are read at once. */
  partBytes?: number
  /** The memory in bytes that the process may take in all: the columns of a row may have any number of pages. */
  memoryBytes?: number | undefined
}

/** The functions that read a file within limits. */
interface Reading {
  file: TableSource
  compressors: Compressors
}

/** Rejects a file whose columns share bytes, which no program writes: they could fill any memory. */
function refuseOverlaps({ row_groups }: FileMetaData, { name }: TableSource): void {
  const ranges = row_groups
    .flatMap(({ columns }) => columns)
    .flatMap(({ meta_data: column }) => {
      if (!column) return []
      const { dictionary_page_offset, data_page_offset, total_compressed_size } = column
      const start = Number(dictionary_page_offset || data_page_offset)
      return [{ start, end: start + Number(total_compressed_size) }]
    })
    .sort((a, b) => a.start - b.start)
  let end = 0
  for (const range of ranges) {
    if (range.start < end)
      throw new TableError(`${name} cannot be read as a Parquet file (two of its columns share bytes)`)
    end = Math.max(end, range.end)
  }
}

function readingOf(file: TableSource, memoryBytes: number): Reading {
  const reserve = (bytes: number): void => {
    if (memoryBytes !== Number.POSITIVE_INFINITY && process.memoryUsage.rss() + bytes > memoryBytes)
      throw new Error(
        `its columns take more than ${Math.round(memoryBytes / 1024 ** 2)} MiB; write it with smaller row groups`,
      )
  }
  const decompress = Object.entries(DECOMPRESSORS).map(([codec, decompressPage]) => [
    codec,
    (input: Uint8Array, bytes: number) => {
      if (bytes > PAGE_BYTES_MAX)
        throw new Error(`a page of it expands to more than ${PAGE_BYTES_MAX / 1024 ** 2} MiB`)
      reserve(bytes)
      // A page without values has no bytes, which some decompressors reject.
      return bytes === 0 ? new Uint8Array() : decompressPage(input, bytes)
    },
  ])
  // The library requests all parts of a column at once.
  const slots = new Slots(1)
  const slice: TableSource['slice'] = (start, end = file.byteLength) =>
    slots.run(async () => {
      reserve(end - start)
      return await file.slice(start, end)
    })
  return { file: { ...file, slice }, compressors: Object.fromEntries(decompress) }
}

export async function openParquet(
  source: TableSource,
  { partBytes = PART_BYTES, memoryBytes = Number.POSITIVE_INFINITY }: ParquetLimits = {},
): Promise<TableReader> {
  const reading = readingOf(source, memoryBytes)
  const metadata = await readMetadata(reading.file)
  refuseOverlaps(metadata, source)
  const columns = parquetSchema(metadata).children.map((child) => ({
    name: child.element.name,
    ...parquetColumn(child),
  }))
  checkNames(source.name, columns)
  const stored = withStoredTypes(metadata, columns)
  return {
    columns,
    async *rows() {
      let groupStart = 0
      for (const group of metadata.row_groups) {
        const groupRows = Number(group.num_rows)
        const parts = Math.ceil(Number(group.total_byte_size) / partBytes)
        const partRows = Math.max(1, Math.ceil(groupRows / Math.max(1, parts)))
        for (let from = 0; from < groupRows; from += partRows) {
          const to = Math.min(groupRows, from + partRows)
          yield* await readPart(reading, stored, columns, groupStart + from, groupStart + to)
        }
        groupStart += groupRows
      }
    },
  }
}

async function readMetadata(file: TableSource): Promise<FileMetaData> {
  try {
    return await parquetMetadataAsync(file, { geoparquet: false })
  } catch (error) {
    throw unreadable(file.name, error)
  }
}

/** Replaces the types of columns in the metadata by the types as which their values are read. */
function withStoredTypes(
  metadata: FileMetaData,
  columns: readonly (Column & { parquet: ParquetColumn })[],
): FileMetaData {
  const [root, ...elements] = metadata.schema
  if (root === undefined) return metadata
  let at = 0
  const schema = columns.flatMap(({ parquet }) => {
    const own = elements.slice(at, at + parquet.declared.length)
    at += own.length
    // A 96-bit time is read as declared, whatever it is written as.
    return own.length === 1 && own[0]?.type !== 'INT96' ? parquet.stored : own
  })
  return { ...metadata, schema: [root, ...schema] }
}

async function readPart(
  { file, compressors }: Reading,
  metadata: FileMetaData,
  columns: readonly (Column & { parquet: ParquetColumn })[],
  rowStart: number,
  rowEnd: number,
): Promise<Row[]> {
  const rows: Cell[][] = []
  try {
    // One column after the other: all columns of a row group together may fill the memory.
    for (const { name, parquet } of columns)
      await parquetRead({
        file,
        metadata,
        compressors,
        columns: [name],
        rowStart,
        rowEnd,
        useOffsetIndex: true,
        // Columns of text are declared as such; other bytes stay bytes.
        utf8: false,
        geoparquet: false,
        parsers: TIME_PARSERS,
        onComplete(found) {
          for (const [i, [value]] of found.entries()) {
            rows[i] ??= []
            rows[i].push(cellOf(value, parquet))
          }
        },
      })
  } catch (error) {
    throw unreadable(file.name, error)
  }
  return rows.map((cells) => ({ cells }))
}

function unreadable(name: string, error: unknown): TableError {
  return new TableError(`${name} cannot be read as a Parquet file (${messageOf(error)})`, { cause: error })
}
