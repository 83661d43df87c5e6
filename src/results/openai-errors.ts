// Failed lines in the form of OpenAI's batches: a line that was tried and rejected has a response with a status, and
// the error in its body. Such a line is stored in this API's form with room for the other one, in blanks before its
// last brace, so that it has the same length in both: sizes, ranges and indexes of files hold for both.
import type { ByteRange } from '../blobs/blobs.ts'
import { isNotRun } from '../domain/batch.ts'
import { type ErrorCode, isErrorCode, openaiError } from '../domain/errors.ts'
import { byteLines, inBlocks, LINE_BREAK } from '../jsonl/byte-lines.ts'
import { stretchesOf } from '../store/chunks.ts'
import type { FileRow } from '../store/schema.ts'
import { type Ports, readContent } from './read-content.ts'

/** Room for the members that only OpenAI's form has: 101 bytes. */
const ROOM = ' '.repeat(128)
const END = Buffer.from(`${ROOM}}`)
/** Text that no `custom_id` contains, since JSON escapes quotation marks. */
export const NO_RESPONSE = '"response":null,"error":'
const ID_START = '{"id":"'.length
const BLOCK_BYTES = 64 * 1024

/** The spaces after a line's error that leave room for OpenAI's form; none where the forms are equal. */
export function roomFor(code: ErrorCode): string {
  return isNotRun(code, 0) ? '' : ROOM
}

/** The lines of a result file, each with its line break, with failed ones in OpenAI's form. */
export function inOpenAiForm(content: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
  return inBlocks(renderedLines(content), BLOCK_BYTES)
}

/** The bytes of `range` of an error file in OpenAI's form. */
export async function* readInOpenAiForm(
  ports: Ports,
  file: FileRow,
  range: ByteRange,
): AsyncGenerator<Buffer> {
  // A stretch begins with a line.
  let at = 0
  for await (const stretch of stretchesOf(ports.db, file.batch_id ?? '')) {
    const bytes = stretch.reduce((sum, { error_bytes }) => sum + error_bytes, 0)
    if (at + bytes > range.start) break
    at += bytes
  }
  for await (const block of inOpenAiForm(readContent(ports, file, { start: at, end: file.bytes }))) {
    const end = Math.min(range.end - at, block.length)
    if (end > range.start - at) yield block.subarray(Math.max(range.start - at, 0), end)
    at += block.length
    if (at >= range.end) return
  }
}

async function* renderedLines(content: AsyncIterable<Buffer>): AsyncGenerator<Buffer[]> {
  for await (const { line } of byteLines(content))
    yield [line.subarray(-END.length).equals(END) ? rendered(line) : line, LINE_BREAK]
}

function rendered(line: Buffer): Buffer {
  const at = line.indexOf(NO_RESPONSE)
  const error = JSON.parse(line.toString('utf8', at + NO_RESPONSE.length, line.length - END.length))
  const { status, code } = openaiError(isErrorCode(error.code) ? error.code : 'internal_error')
  const request_id = line.toString('utf8', ID_START, line.indexOf('"', ID_START))
  const response = {
    status_code: status,
    request_id,
    body: { error: { param: null, ...error, code } },
  }
  const text = `"response":${JSON.stringify(response)},"error":null`
  const form = Buffer.alloc(line.length, ' ')
  line.copy(form, 0, 0, at)
  form.write(text, at)
  form.write('}', line.length - 1)
  return form
}
