// A file and fields beside it as a form, for uploads.

/** `boundary` must be nowhere in the content. */
export function multipartFile(
  boundary: string,
  fields: Readonly<Record<string, string>>,
  filename: string,
  content: readonly Uint8Array[],
): { body: Buffer; headers: Record<string, string> } {
  const part = (disposition: string): string =>
    `--${boundary}\r\ncontent-disposition: form-data; ${disposition}`
  const head = Object.entries(fields).map(([name, value]) => `${part(`name="${name}"`)}\r\n\r\n${value}\r\n`)
  const file = `${part(`name="file"; filename="${filename}"`)}\r\ncontent-type: application/jsonl\r\n\r\n`
  return {
    body: Buffer.concat([
      Buffer.from(head.join('') + file),
      ...content,
      Buffer.from(`\r\n--${boundary}--\r\n`),
    ]),
    headers: { 'content-type': `multipart/form-data; boundary=${boundary}` },
  }
}
