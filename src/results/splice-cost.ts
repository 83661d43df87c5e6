// Adds `usage.cost_usd` to a model's answer without disturbing the rest: the answer's own text is kept, and
// only the new member is set into it. Parsing and printing the answer again would change its numbers,
// its escapes and its order.

const QUOTE = 0x22
const BACKSLASH = 0x5c
const OPEN_BRACE = 0x7b
const CLOSE_BRACE = 0x7d
const OPEN_BRACKET = 0x5b
const CLOSE_BRACKET = 0x5d
const COLON = 0x3a

/**
 * `text` is the JSON of an object, already known to be valid; `usageLiteral` is used where it has no `usage`
 * object: `{"prompt_tokens":…}` without `cost_usd`. Of a `usage` given twice, the last counts. The result is on
 * one line, for JSON holds raw line breaks only between its tokens.
 */
export function spliceCost(text: string, costLiteral: string, usageLiteral: string): string {
  const usage = onlyUsage(text) ?? memberValue(text, 0, 'usage')
  const spliced =
    usage === null || text.charCodeAt(usage.start) !== OPEN_BRACE
      ? withUsage(text, usage, `${usageLiteral.slice(0, -1)},"cost_usd":${costLiteral}}`)
      : withCost(text, usage, costLiteral)
  return /[\n\r]/.test(spliced) ? spliced.replace(/[\n\r]+/g, ' ') : spliced
}

interface TextSpan {
  start: number
  end: number
}

/**
 * Most answers end with their only `"usage":{…}`, and closing one brace after it closes the answer: then it is
 * the answer's own, and the rest of the text need not be walked through.
 */
function onlyUsage(text: string): TextSpan | null {
  const at = text.lastIndexOf('"usage":{')
  if (at === -1 || text.includes('\\u0')) return null
  const start = at + '"usage":'.length
  const end = endOfValue(text, start)
  return text.slice(end).trim() === '}' ? { start, end } : null
}

function withCost(text: string, usage: TextSpan, costLiteral: string): string {
  const old = memberValue(text, usage.start, 'cost_usd')
  if (old !== null) return text.slice(0, old.start) + costLiteral + text.slice(old.end)
  const brace = usage.end - 1
  const comma = isEmptyObject(text, usage) ? '' : ','
  return `${text.slice(0, brace)}${comma}"cost_usd":${costLiteral}${text.slice(brace)}`
}

function withUsage(text: string, old: TextSpan | null, usage: string): string {
  if (old !== null) return text.slice(0, old.start) + usage + text.slice(old.end)
  const brace = text.lastIndexOf('}')
  const start = text.indexOf('{')
  const comma = isEmptyObject(text, { start, end: brace + 1 }) ? '' : ','
  return `${text.slice(0, brace)}${comma}"usage":${usage}${text.slice(brace)}`
}

function isEmptyObject(text: string, object: TextSpan): boolean {
  return text.slice(object.start + 1, object.end - 1).trim() === ''
}

/** The value of the last member called `name` of the object that opens at or after `from`; null when it has none. */
function memberValue(text: string, from: number, name: string): TextSpan | null {
  let at = text.indexOf('{', from) + 1
  let found: TextSpan | null = null
  for (;;) {
    at = skipTo(text, at)
    if (text.charCodeAt(at) !== QUOTE) return found
    const keyEnd = stringEnd(text, at)
    const key = text.slice(at, keyEnd)
    let valueStart = text.indexOf(':', keyEnd) + 1
    while (isSpace(text.charCodeAt(valueStart))) valueStart++
    const valueEnd = endOfValue(text, valueStart)
    if (key === `"${name}"` || (key.includes('\\') && JSON.parse(key) === name)) {
      found = { start: valueStart, end: valueEnd }
    }
    at = valueEnd
  }
}

/** From a place between members: the next quote, or the brace that closes the object. */
function skipTo(text: string, from: number): number {
  let at = from
  for (;;) {
    const c = text.charCodeAt(at)
    if (c === QUOTE || c === CLOSE_BRACE || Number.isNaN(c)) return at
    at++
  }
}

/** Just past the quote that closes the string opening at `at`. */
function stringEnd(text: string, at: number): number {
  let close = text.indexOf('"', at + 1)
  while (text.charCodeAt(close - 1) === BACKSLASH && isEscaped(text, close))
    close = text.indexOf('"', close + 1)
  return close + 1
}

function isEscaped(text: string, at: number): boolean {
  let slashes = 0
  while (text.charCodeAt(at - 1 - slashes) === BACKSLASH) slashes++
  return slashes % 2 === 1
}

/** Just past the value that starts at `start`. */
function endOfValue(text: string, start: number): number {
  const first = text.charCodeAt(start)
  if (first === QUOTE) return stringEnd(text, start)
  if (first !== OPEN_BRACE && first !== OPEN_BRACKET) {
    let at = start
    while (!isScalarEnd(text.charCodeAt(at))) at++
    return at
  }
  let depth = 0
  for (let at = start; at < text.length; at++) {
    const c = text.charCodeAt(at)
    if (c === QUOTE) at = stringEnd(text, at) - 1
    else if (c === OPEN_BRACE || c === OPEN_BRACKET) depth++
    else if (c === CLOSE_BRACE || c === CLOSE_BRACKET) {
      depth--
      if (depth === 0) return at + 1
    }
  }
  throw new Error('unbalanced JSON')
}

function isSpace(c: number): boolean {
  return c === 0x20 || c === 0x0a || c === 0x0d || c === 0x09
}

function isScalarEnd(c: number): boolean {
  return (
    Number.isNaN(c) || c === 0x2c || c === CLOSE_BRACE || c === CLOSE_BRACKET || c === COLON || isSpace(c)
  )
}
