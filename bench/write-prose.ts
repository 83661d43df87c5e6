// Lines as people write them: the sentences of the GSM8K questions in an order of chance, seeded, so that two runs
// send the same bytes. Repeated filler compresses to nothing; this costs a compressor what real text does.
import { once } from 'node:events'
import { createWriteStream, readFileSync } from 'node:fs'

const EXAMPLE = new URL('../examples/gsm8k.jsonl', import.meta.url)

/** Writes `count` lines of about `bytes` each for the model `bench`. */
export async function writeProse(path: string, count: number, bytes: number): Promise<void> {
  const sentences = readFileSync(EXAMPLE, 'utf8')
    .trim()
    .split('\n')
    .flatMap((line) => String(JSON.parse(line).body.messages.at(-1).content).split(/(?<=[.?!]) /))
  let state = 12345
  const pick = (): string => {
    state ^= state << 13
    state ^= state >>> 17
    state ^= state << 5
    return sentences[(state >>> 0) % sentences.length] ?? ''
  }
  const out = createWriteStream(path)
  for (let i = 0; i < count; i++) {
    let content = pick()
    while (content.length < bytes - 200) content += ` ${pick()}`
    const body = { model: 'bench', messages: [{ role: 'user', content }], max_tokens: 16 }
    const text = JSON.stringify({ custom_id: `line-${i}`, method: 'POST', url: '/v1/chat/completions', body })
    if (!out.write(`${text}\n`)) await once(out, 'drain')
  }
  out.end()
  await once(out, 'finish')
}
