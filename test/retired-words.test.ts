// Holds the vocabulary of docs/glossary.md: words that it has replaced do not come back.
import assert from 'node:assert/strict'
import { globSync, readFileSync } from 'node:fs'
import { test } from 'node:test'

const ROOT = new URL('../', import.meta.url).pathname
const SELF = 'test/retired-words.test.ts'
const FOLDERS = '{src,test,bench,docs,examples,deploy}/**/*.{ts,md,yaml,py}'
/** Histories, which quote the words of their time. */
const HISTORIES = ['docs/decisions/', 'CHANGELOG.md']

interface RetiredWord {
  word: RegExp
  use: string
  /** Path prefixes in which the word has another meaning, or has not been replaced yet. */
  except?: readonly string[]
}

const RETIRED: readonly RetiredWord[] = [
  { word: /\b(?:outlooks?)\b/i, use: 'projected cost', except: ['src/ledger/'] },
  { word: /\b(?:foresee\w*)\b/i, use: 'project' },
  { word: /\b(?:prospects?)\b/i, use: 'projected cost' },
  { word: /\b(?:appetite)\b/i, use: 'demand' },
  { word: /\b(?:hungry)\b/i, use: 'demand' },
  { word: /\b(?:doomed)\b/i, use: 'pending deletion' },
  { word: /\b(?:left behind)\b/i, use: 'orphan', except: ['docs/', 'src/blobs/', 'src/cli/', 'src/jsonl/'] },
  { word: /\b(?:chores?)\b/i, use: 'maintenance task', except: ['src/compose/'] },
  {
    word: /\b(?:upkeep)\b/i,
    use: 'maintenance, admin commands',
    except: ['docs/', 'src/admin/', 'src/compose/', 'src/store/'],
  },
  { word: /\b(?:departures?)\b/i, use: 'graceful shutdown' },
  { word: /\b(?:early reading)\b/i, use: 'streaming validation' },
  { word: /\b(?:parcels?)\b/i, use: 'webhook request' },
  { word: /\b(?:testimony)\b/i, use: 'invariant check' },
  { word: /\b(?:diary|diaries)\b/i, use: 'trace' },
  {
    word: /\b(?:witness(es)?)\b/i,
    use: 'invariant checker, recording proxy',
    except: ['src/backends/', 'src/dispatch/'],
  },
  { word: /\b(?:planted)\b/i, use: 'mutant' },
  {
    word: /\b(?:silences?)\b/i,
    use: 'expired lease, gap',
    except: ['src/backends/', 'src/cli/', 'src/http/', 'src/intake/'],
  },
  { word: /\b(?:frost)\b/i, use: 'SIGSTOP' },
  { word: /\b(?:false clocks?)\b/i, use: 'clock skew' },
  { word: /\b(?:hasty)\b/i, use: 'fast', except: ['test/'] },
  { word: /\b(?:bad weather)\b/i, use: 'faults' },
  { word: /\b(?:let go)\b/i, use: 'release', except: ['src/ledger/'] },
  { word: /\b(?:gave back)\b/i, use: 'requeue' },
  {
    word: /\b(?:giv(e|es|en|ing) back)\b/i,
    use: 'requeue',
    except: [
      'docs/',
      'src/blobs/',
      'src/compose/',
      'src/dispatch/',
      'src/intake/',
      'src/ledger/',
      'src/maintenance/',
      'src/results/',
      'src/store/',
      'test/',
    ],
  },
  {
    word: /\b(?:tak(e|es|en) up again)\b/i,
    use: 'requeue',
    except: ['src/cli/', 'src/compose/', 'src/dispatch/', 'src/store/'],
  },
  { word: /\b(?:hurry)\b/i, use: 'at-risk', except: ['src/dispatch/', 'src/intake/'] },
  { word: /\b(?:halves)\b/i, use: 'roles', except: ['docs/', 'src/cli/', 'src/dispatch/', 'src/intake/'] },
  {
    word: /\b(?:trouble)\b/i,
    use: 'unavailable, backing off',
    except: ['src/backends/', 'src/compose/', 'src/dispatch/', 'src/http/', 'src/store/', 'test/'],
  },
  {
    word: /\b(?:died|dies|dead|death)\b/i,
    use: 'crash',
    except: [
      'docs/',
      'src/admin/',
      'src/backends/',
      'src/blobs/',
      'src/cli/',
      'src/compose/',
      'src/dispatch/',
      'src/maintenance/',
      'src/notify/',
      'src/store/',
      'test/',
    ],
  },
  { word: /\b(?:fell)\b/i, use: 'crash', except: ['docs/', 'src/backends/', 'src/compose/', 'src/intake/'] },
  { word: /\b(?:fallen)\b/i, use: 'crash', except: ['src/compose/', 'src/http/'] },
  {
    word: /\b(?:mend(s|ed|ing)?)\b/i,
    use: 'fix',
    except: [
      'src/backends/',
      'src/blobs/',
      'src/cli/',
      'src/compose/',
      'src/config/',
      'src/http/',
      'src/intake/',
      'src/jsonl/',
      'src/store/',
    ],
  },
  { word: /\b(?:nights?)\b/i, use: 'run', except: ['src/maintenance/'] },
  { word: /\b(?:set aside)\b/i, use: 'reserve', except: ['src/ledger/', 'src/results/'] },
  { word: /\b(?:was away|is away|are away)\b/i, use: 'unavailable', except: ['src/dispatch/', 'src/store/'] },
  { word: /\b(?:handfuls?)\b/i, use: 'quota leasing', except: ['docs/', 'src/backends/', 'src/http/'] },
  {
    word: /\b(?:whom)\b/i,
    use: 'the entity or the caller',
    except: [
      'src/admin/',
      'src/cli/',
      'src/dispatch/',
      'src/http/',
      'src/ledger/',
      'src/results/',
      'src/store/',
      'src/wire/',
    ],
  },
  {
    word: /\b(?:Refusals?)\b/i,
    use: 'ApiError',
    except: [
      'docs/',
      'src/backends/',
      'src/cli/',
      'src/dispatch/',
      'src/http/',
      'src/intake/',
      'src/jsonl/',
      'src/notify/',
      'src/results/',
      'src/store/',
      'src/wire/',
      'test/',
    ],
  },
  {
    word: /\b(?:standing)\b/i,
    use: 'progress, status, spend by limit',
    except: ['src/cli/', 'src/dispatch/', 'src/http/', 'src/ledger/', 'src/store/'],
  },
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
