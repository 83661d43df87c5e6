// What hosted batch APIs do otherwise than OpenAI's, as their documentation said on 2026-11-22. docs/batch-apis.md lists it
// for readers.

export interface BatchApiDialect {
  /** The `purpose` of uploaded files. */
  file_purpose: string
  upload_path: string
  /** Fields of the upload's form beside `purpose` and `file`. */
  upload_fields: (filename: string) => Readonly<Record<string, string>>
  /** How long a batch is left alone between two looks at least (ms). */
  pollMsMin: number
}

const OPENAI: BatchApiDialect = {
  file_purpose: 'batch',
  upload_path: '/files',
  upload_fields: () => ({}),
  pollMsMin: 0,
}
const TOGETHER: BatchApiDialect = {
  file_purpose: 'batch-api',
  upload_path: '/files/upload',
  upload_fields: (file_name) => ({ file_name, file_type: 'jsonl' }),
  // It asks for half a minute to a minute.
  pollMsMin: 30_000,
}
/** Providers count looks against rate limits; their batches take minutes at least. */
const HOSTED_POLL_MS = 5_000

const DIALECTS: Readonly<Record<string, BatchApiDialect>> = {
  'api.openai.com': { ...OPENAI, pollMsMin: HOSTED_POLL_MS },
  'api.groq.com': { ...OPENAI, pollMsMin: HOSTED_POLL_MS },
  'api.doubleword.ai': { ...OPENAI, pollMsMin: HOSTED_POLL_MS },
  'api.together.ai': TOGETHER,
  'api.together.xyz': TOGETHER,
}

/** Another Offpeak, and whatever is not known, speaks as OpenAI does. */
export function dialectOf(base_url: string): BatchApiDialect {
  return DIALECTS[new URL(base_url).hostname] ?? OPENAI
}
