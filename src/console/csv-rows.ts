// Parses a small table: CSV (RFC 4180) with any line ends, or tab-separated if the first line has tabs.

export type SmallTable = { columns: string[]; rows: string[][] }

export function readTable(text: string): SmallTable {
  const separator = (text.split('\n', 1)[0] ?? '').includes('\t') ? '\t' : ','
  const rows: string[][] = []
  let row: string[] = []
  let cell = ''
  let quoted = false
  const end = (): void => {
    rows.push([...row, cell])
    row = []
    cell = ''
  }
  const source = text.replace(/^\ufeff/, '')
  for (let i = 0; i < source.length; i++) {
    const character = source[i] ?? ''
    if (quoted) {
      if (character !== '"') cell += character
      else if (source[i + 1] === '"') {
        cell += '"'
        i++
      } else quoted = false
    } else if (character === '"' && cell === '') quoted = true
    else if (character === separator) {
      row.push(cell)
      cell = ''
    } else if (character === '\n' || character === '\r') {
      if (character === '\r' && source[i + 1] === '\n') i++
      end()
    } else cell += character
  }
  if (cell !== '' || row.length > 0) end()
  const [columns = [], ...data] = rows.filter((cells) => cells.some((text) => text.trim() !== ''))
  return { columns: columns.map((name) => name.trim()), rows: data }
}

/** Replaces each `{{column}}` of a prompt by the row's cell. */
export function fillPrompt(prompt: string, { columns }: SmallTable, row: readonly string[]): string {
  return prompt.replace(/\{\{([^{}]+)\}\}/g, (whole, name: string) => {
    const at = columns.indexOf(name.trim())
    return at < 0 ? whole : (row[at] ?? '')
  })
}

/** The names in a prompt that are no columns. */
export function unknownColumns(prompt: string, { columns }: SmallTable): string[] {
  return [...prompt.matchAll(/\{\{([^{}]+)\}\}/g)]
    .map(([, name = '']) => name.trim())
    .filter((name) => !columns.includes(name))
}
