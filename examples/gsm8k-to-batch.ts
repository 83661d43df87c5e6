// FairQueue the GSM8K test set (one {question, answer} a line) into a batch input file on stdout:
//
//   node examples/gsm8k-to-batch.ts gsm8k-test.jsonl [--model sim-1] [--max-tokens 256] > gsm8k.jsonl
//
// Line n of the output asks question n, so custom_id gsm8k-0001 belongs to the first answer of the set.
import { createReadStream } from 'node:fs'
import { createInterface } from 'node:readline'
import { parseArgs } from 'node:util'

const INSTRUCTION =
  'Solve the problem step by step. End with a line of the form "#### answer", where answer is only the number.'

/** One line of the input file; throws an Error that names the line of the set when it holds no question. */
export function batchLine(source: string, number: number, model: string, max_tokens: number): string {
  const item: unknown = JSON.parse(source)
  if (
    typeof item !== 'object' ||
    item === null ||
    !('question' in item) ||
    typeof item.question !== 'string'
  ) {
    throw new Error(`line ${number} has no "question"`)
  }
  return JSON.stringify({
    custom_id: `gsm8k-${String(number).padStart(4, '0')}`,
    method: 'POST',
    url: '/v1/chat/completions',
    body: {
      model,
      max_tokens,
      messages: [
        { role: 'system', content: INSTRUCTION },
        { role: 'user', content: item.question },
      ],
    },
  })
}

async function main(): Promise<void> {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      model: { type: 'string', default: 'sim-1' },
      'max-tokens': { type: 'string', default: '256' },
    },
  })
  const [path] = positionals
  const max_tokens = Number(values['max-tokens'])
  if (path === undefined || positionals.length > 1 || !Number.isSafeInteger(max_tokens) || max_tokens < 1) {
    console.error('usage: node examples/gsm8k-to-batch.ts GSM8K.jsonl [--model NAME] [--max-tokens N]')
    process.exitCode = 2
    return
  }
  let number = 0
  for await (const line of createInterface({ input: createReadStream(path), crlfDelay: Infinity })) {
    if (line.trim() === '') continue
    number++
    process.stdout.write(`${batchLine(line, number, values.model, max_tokens)}\n`)
  }
}

if (import.meta.main) await main()
