// Parses and prints JSON for display, with all digits of its numbers: 9007199254740993 and 1.0 stay as they are.
// `print` writes what `parse` read.

declare global {
  interface JSON {
    parse(
      text: string,
      reviver: (key: string, value: unknown, context: { source?: string }) => unknown,
    ): unknown
    /** Browsers that lack it show numbers as they read them. */
    rawJSON?: (text: string) => unknown
  }
}

/** Null where the text is no JSON. */
export function parseExact(text: string): unknown {
  try {
    return JSON.parse(text, (_key, value, { source }) =>
      typeof value === 'number' && source !== undefined && JSON.rawJSON ? JSON.rawJSON(source) : value,
    )
  } catch {
    return null
  }
}

export function print(value: unknown): string {
  return JSON.stringify(value, null, 2) ?? ''
}
