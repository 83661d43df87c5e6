// Text for simulated answers: it says first that no model ran, then runs on in words, one word counting as
// one token. A long stretch is made once, and an answer is a slice of it: a load test asks for tens of
// thousands a second.
import { randomOfHash, type SeededRandom } from './seeded-random.ts'

const WORDS = (
  'stone river lamp quiet amber field seven copper window harbor violet thread morning gravel orbit cedar ' +
  'paper signal winter meadow lantern north silver garden engine marble distant pocket summer bridge velvet ' +
  'anchor forest mirror cloud pepper island candle hollow rocket ladder maple button thunder canvas shadow'
).split(' ')
const STRETCH = 8192

const stretch = makeStretch()

/** `tokens` words (at least one, at most STRETCH): plain ASCII that needs no escaping in JSON. */
export function simulatedText(random: SeededRandom, tokens: number): string {
  const lead = `Simulated answer ${random.sha256.slice(0, 12)}: no model ran.`
  const leadWords = 6
  if (tokens <= leadWords) return lead.split(' ').slice(0, tokens).join(' ')
  const words = Math.min(tokens - leadWords, STRETCH)
  const from = random.between(0, STRETCH - 1)
  return `${lead} ${stretch.text.slice(stretch.starts[from], stretch.starts[from + words]! - 1)}`
}

/** The most tokens a text can have. */
export const TEXT_TOKENS_MAX = STRETCH

function makeStretch(): { text: string; starts: number[] } {
  const random = randomOfHash('0ff9ea40')
  const starts: number[] = []
  let text = ''
  // Twice the length, so that a slice from anywhere in the first half is never short.
  for (let i = 0; i < STRETCH * 2; i++) {
    starts.push(text.length)
    text += `${WORDS[random.next() % WORDS.length]} `
  }
  starts.push(text.length)
  return { text, starts }
}
