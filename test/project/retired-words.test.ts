// Holds the vocabulary of docs/glossary.md: words that it has replaced do not come back.
import assert from 'node:assert/strict'
import { globSync, readFileSync } from 'node:fs'
import { test } from 'node:test'

const ROOT = new URL('../../', import.meta.url).pathname
const SELF = 'test/project/retired-words.test.ts'
const FOLDERS = '{src,test,bench,docs,examples,deploy}/**/*.{ts,md,yaml,py}'
/** Histories, which quote the words of their time. */
const HISTORIES = ['docs/decisions/', 'CHANGELOG.md']

interface RetiredWord {
  word: RegExp
  use: string
  /** Path prefixes in which the word has another meaning. */
  except?: readonly string[]
}

const RETIRED: readonly RetiredWord[] = [
  { word: /\b(?:outlooks?)\b/i, use: 'projected cost' },
  { word: /\b(?:foresee\w*)\b/i, use: 'project' },
  { word: /\b(?:prospects?)\b/i, use: 'projected cost' },
  { word: /\b(?:appetite)\b/i, use: 'demand' },
  { word: /\b(?:hungry)\b/i, use: 'demand' },
  { word: /\b(?:doomed)\b/i, use: 'pending deletion' },
  { word: /\b(?:left behind)\b/i, use: 'orphan' },
  { word: /\b(?:chores?)\b/i, use: 'maintenance task' },
  {
    word: /\b(?:upkeep)\b/i,
    use: 'maintenance, admin commands',
  },
  { word: /\b(?:departures?)\b/i, use: 'graceful shutdown' },
  { word: /\b(?:early reading)\b/i, use: 'streaming validation' },
  { word: /\b(?:parcels?)\b/i, use: 'webhook request' },
  { word: /\b(?:testimony)\b/i, use: 'invariant check' },
  { word: /\b(?:diary|diaries)\b/i, use: 'trace' },
  {
    word: /\b(?:witness(es)?)\b/i,
    use: 'invariant checker, recording proxy',
  },
  { word: /\b(?:planted)\b/i, use: 'mutant' },
  {
    word: /\b(?:silences?)\b/i,
    use: 'expired lease, gap',
  },
  { word: /\b(?:frost)\b/i, use: 'SIGSTOP' },
  { word: /\b(?:false clocks?)\b/i, use: 'clock skew' },
  { word: /\b(?:hasty)\b/i, use: 'fast' },
  { word: /\b(?:bad weather)\b/i, use: 'faults' },
  { word: /\b(?:let go)\b/i, use: 'release' },
  { word: /\b(?:gave back)\b/i, use: 'requeue' },
  {
    word: /\b(?:giv(e|es|en|ing) back)\b/i,
    use: 'requeue',
  },
  {
    word: /\b(?:tak(e|es|en) up again)\b/i,
    use: 'requeue',
  },
  { word: /\b(?:hurry)\b/i, use: 'at-risk' },
  { word: /\b(?:halves)\b/i, use: 'roles' },
  {
    word: /\b(?:trouble)\b/i,
    use: 'unavailable, backing off',
  },
  {
    word: /\b(?:died|dies|dead|death)\b/i,
    use: 'crash',
  },
  { word: /\b(?:fell)\b/i, use: 'crash' },
  { word: /\b(?:fallen)\b/i, use: 'crash' },
  {
    word: /\b(?:mend(s|ed|ing)?)\b/i,
    use: 'fix',
  },
  { word: /\b(?:nights?)\b/i, use: 'run' },
  { word: /\b(?:set aside)\b/i, use: 'reserve' },
  { word: /\b(?:was away|is away|are away)\b/i, use: 'unavailable' },
  { word: /\b(?:handfuls?)\b/i, use: 'quota leasing' },
  {
    word: /\b(?:whom)\b/i,
    use: 'the entity or the caller',
  },
  // `refusal` is also a field of answers in OpenAI's format, and a word in Anthropic's.
  {
    word: /(?<!['"`])\b(?:Refusals?)\b/i,
    use: 'ApiError',
    except: [
      'src/tables/answer-cells.ts',
      'src/cli/gateway/event-stream.ts',
      'src/jsonl/line-scan-messages.ts',
      'src/jsonl/prompt-bound.ts',
      'src/console/parts/messages.ts',
    ],
  },
  {
    word: /\b(?:standing)\b/i,
    use: 'progress, status, spend by limit',
    // A provider's message.
    except: ['src/backends/verdict/access-errors.test.ts'],
  },
  { word: /\b(?:doubtful)\b/i, use: 'ambiguous' },
  { word: /\b(?:piles?)\b(?! up)/i, use: 'queue, lines' },
]

test('retired words do not come back', () => {
  const paths = [...globSync(FOLDERS, { cwd: ROOT }), ...globSync('*.md', { cwd: ROOT })]
    .map((path) => path.replaceAll('\\', '/'))
    .filter((path) => path !== SELF && !HISTORIES.some((prefix) => path.startsWith(prefix)))
  const found: string[] = []
  for (const path of paths) {
    const text = readFileSync(`${ROOT}${path}`, 'utf8')
    for (const { word, use, except = [] } of RETIRED) {
      if (except.some((prefix) => path.startsWith(prefix)) || !word.test(text)) continue
      for (const [i, line] of text.split('\n').entries())
        if (word.test(line)) found.push(`${path}:${i + 1}: ${word.exec(line)?.[0]} (use: ${use})`)
    }
  }
  assert.deepEqual(found, [])
})
