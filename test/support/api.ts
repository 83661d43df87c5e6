// Calls of the API, whoever runs the service.

export interface ApiAt {
  url: string
  key: string
}

export type Body = FormData | string | object

/** A form and text are sent as such, everything else as JSON. */
export async function askApi(
  { url, key }: ApiAt,
  method: string,
  path: string,
  body?: Body,
  { headers = {}, signal }: { headers?: Record<string, string>; signal?: AbortSignal | undefined } = {},
): Promise<Response> {
  const isJson = typeof body === 'object' && !(body instanceof FormData)
  const type = isJson ? { 'content-type': 'application/json' } : {}
  return await fetch(url + path, {
    method,
    headers: { authorization: `Bearer ${key}`, ...type, ...headers },
    body: isJson ? JSON.stringify(body) : (body ?? null),
    signal: signal ?? null,
  })
}

/** The text of an answer that has to be one. */
export async function callApi(
  at: ApiAt,
  method: string,
  path: string,
  body?: Body,
  headers: Record<string, string> = {},
): Promise<string> {
  const response = await askApi(at, method, path, body, { headers })
  const text = await response.text()
  if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${text}`)
  return text
}

/** The form that uploads these lines, or a file of this content. */
export function uploadForm(
  content: readonly object[] | string | Uint8Array,
  filename = 'input.jsonl',
): FormData {
  const isFile = typeof content === 'string' || content instanceof Uint8Array
  const file = isFile ? content : content.map((line) => JSON.stringify(line)).join('\n')
  const form = new FormData()
  form.set('purpose', 'batch')
  form.set('file', new Blob([new Uint8Array(Buffer.from(file))]), filename)
  return form
}

export function parsedLines<T>(jsonl: string): T[] {
  return jsonl
    .split('\n')
    .filter(Boolean)
    .map((line) => JSON.parse(line) as T)
}
