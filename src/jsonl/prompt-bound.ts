// The upper bound of the tokens of a prompt, in any tokenizer and with any chat template, as the body shows it.
//
// A token is at least a byte: tokenizers without a word for a character fall back to its bytes, and JSON writes no
// character in fewer bytes than it has. A template adds less around each message than the JSON around it has. Beyond the
// bytes of the body there are:
// - text that a template or a provider adds to each input (`templateTokensMax` of the endpoint);
// - tools and schemas, which templates render anew, indented or escaped: they count twice;
// - the shorter side of pairs, which the server repeats for each text of the other side;
// - pictures, however few bytes they have: IMAGE_TOKENS each;
// - films and files, however few bytes they have: FILE_TOKENS, which is more than any window;
// - content to which the body refers: films and files by address or ID, stored prompts, earlier responses, results of a
//   provider's own tools. Only the server sees it: the model's window is its bound and its projection.
//
// Few servers report more than the bytes of a body, and few bodies refer to content: only those are parsed.

import { type EndpointPath, endpointOf } from '../domain/endpoint.ts'
import type { Span } from './json-scan.ts'

/** Tokens assumed for a picture; the most that a server is known to count is 48,000. */
export const IMAGE_TOKENS = 65_536
const FILE_TOKENS = 2 ** 40
const UNSEEN = Number.POSITIVE_INFINITY
const IMAGES = ['image_url', 'input_image', 'image']
/** Types of parts whose tokens are all in the body. */
const WHOLE = [
  ...['text', 'input_text', 'output_text', 'refusal', 'input_audio'],
  ...['thinking', 'redacted_thinking', 'tool_use'],
]
/** Types of parts that contain other parts. */
const HOLDERS = ['tool_result', 'search_result']
/** Types of parts that refer to nothing outside the body. */
export const PARTS: readonly string[] = [...IMAGES, ...WHOLE, ...HOLDERS]
/** Members of a file part that contain its content, and members that only describe it. */
const CONTENT = ['data', 'file_data']
const DESCRIPTION = [
  ...['type', 'format', 'media_type', 'mime_type', 'detail', 'ttl'],
  ...['filename', 'name', 'title', 'context'],
]
/** Types of tools that the caller runs, not the provider. */
const OWN_TOOLS: readonly unknown[] = [undefined, null, 'function', 'custom']
/** Types of response items that are in the body as a whole. */
export const ITEMS: readonly string[] = ['message', 'function_call', 'function_call_output', 'reasoning']

/** An upper bound of the prompt's tokens, at least `reported` where possible; Infinity if only the window bounds it. */
export function promptTokensMax(
  bytes: Buffer,
  { start, end }: Span,
  path: EndpointPath,
  inputs: number,
  reported: number,
): number {
  const least = end - start + endpointOf(path).templateTokensMax * inputs
  return reported <= least ? least : least + beyondBytes(parsed(bytes, start, end), path, inputs)
}

/** Whether a valid body's prompt has parts that only the server sees. */
export function hasUnseen(bytes: Buffer, { start, end }: Span, path: EndpointPath): boolean {
  return beyondBytes(parsed(bytes, start, end), path, 1) === UNSEEN
}

function parsed(bytes: Buffer, start: number, end: number): Record<string, unknown> {
  return record(JSON.parse(bytes.toString('utf8', start, end)))
}

function beyondBytes(body: Record<string, unknown>, path: EndpointPath, inputs: number): number {
  let tokens = 0
  for (const [name, role] of Object.entries(endpointOf(path).fields)) {
    const value = body[name]
    if (value === undefined || value === null) continue
    if (role === 'reference') return UNSEEN
    if (role === 'messages') tokens += tokensOfMessages(asList(value))
    else if (role === 'items') tokens += tokensOfItems(asList(value))
    else if (role === 'documents') tokens += tokensOfDocuments(asList(value), inputs)
    else if (name === 'tools') tokens += tokensOfProviderTools(asList(value)) + bytesOf(value)
    else if (role === 'format' || name === 'text' || name === 'output_config') tokens += bytesOf(value)
  }
  return tokens
}

function tokensOfMessages(messages: readonly unknown[]): number {
  return sumOver(messages, (message) => sumOver(asList(record(message).content), tokensOfPart))
}

function tokensOfItems(items: readonly unknown[]): number {
  return sumOver(items, (item) => {
    const { type, content } = record(item)
    const isWhole = typeof item === 'string' || type === undefined || isOne(ITEMS, type)
    return isWhole ? sumOver(asList(content), tokensOfPart) : UNSEEN
  })
}

/** Tokens beyond the bytes for one side of pairs, or for documents: the server repeats each for every other text. */
function tokensOfDocuments(documents: readonly unknown[], inputs: number): number {
  const times = Math.ceil(inputs / Math.max(1, documents.length))
  const own = sumOver(documents, (document) => {
    if (typeof document === 'string') return 0
    const { text, content } = record(document)
    if (Array.isArray(content)) return sumOver(content, tokensOfPart)
    return typeof text === 'string' || typeof content === 'string' ? 0 : IMAGE_TOKENS
  })
  return times * own + (times - 1) * bytesOf(documents)
}

function tokensOfProviderTools(tools: readonly unknown[]): number {
  return tools.every((tool) => OWN_TOOLS.includes(record(tool).type)) ? 0 : UNSEEN
}

function tokensOfPart(part: unknown): number {
  const { type, text, content, source } = record(part)
  if (typeof part === 'string' || typeof text === 'string' || isOne(WHOLE, type)) return 0
  if (isOne(HOLDERS, type)) return sumOver(asList(content), tokensOfPart)
  if (type === 'document') {
    const { type: kind, content: parts } = record(source)
    if (kind === 'text' || kind === 'content') return sumOver(asList(parts), tokensOfPart)
  }
  return isOne(IMAGES, type) ? IMAGE_TOKENS : isInBody(part) ? FILE_TOKENS : UNSEEN
}

/** Whether a part contains its content, and no text that may be an address or an ID. */
function isInBody(part: unknown): boolean {
  let hasContent = false
  let isElsewhere = false
  // JSON.stringify visits every member, however deep.
  JSON.stringify(part, (name, value: unknown) => {
    if (typeof value !== 'string') return value
    const isContent = isOne(CONTENT, name) ? !/^[\w+.-]+:\/\//.test(value) : value.startsWith('data:')
    hasContent ||= isContent
    isElsewhere ||= !isContent && !isOne(DESCRIPTION, name)
    return undefined
  })
  return hasContent && !isElsewhere
}

function isOne(words: readonly string[], word: unknown): boolean {
  return typeof word === 'string' && words.includes(word)
}

function sumOver(values: readonly unknown[], tokensOf: (value: unknown) => number): number {
  return values.reduce<number>((sum, value) => sum + tokensOf(value), 0)
}

/** The value as a list; a single value becomes a list of one. */
function asList(value: unknown): readonly unknown[] {
  return Array.isArray(value) ? value : [value ?? []].flat()
}

function record(value: unknown): Record<string, unknown> {
  return typeof value === 'object' && value !== null ? { ...value } : {}
}

function bytesOf(value: unknown): number {
  return Buffer.byteLength(JSON.stringify(value))
}
