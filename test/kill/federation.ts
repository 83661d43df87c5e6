// node test/kill/federation.ts [--cycles 100] [--seed 1] [--lines 60]: kills front, cell or both, and says what broke.
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { runFederation } from './federation-run.ts'

const { values } = parseArgs({
  options: {
    cycles: { type: 'string', default: '100' },
    seed: { type: 'string', default: '1' },
    lines: { type: 'string', default: '60' },
  },
})
const say = (text: string): void => void process.stdout.write(`${text}\n`)
const folder = mkdtempSync(join(tmpdir(), 'offpeak-federation-'))
const [cycles, seed, lines] = [Number(values.cycles), Number(values.seed), Number(values.lines)]
const { violations, ...summary } = await runFederation({ cycles, seed, lines, folder, report: say })
for (const violation of violations) say(violation)
say(JSON.stringify({ seed, ...summary, violations: violations.length }))
if (violations.length === 0) rmSync(folder, { recursive: true })
else say(`kept ${folder}`)
process.exit(violations.length === 0 ? 0 : 1)
