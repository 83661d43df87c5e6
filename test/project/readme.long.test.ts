// The commands of the README, pasted into a shell as they are, in a folder like a fresh clone.
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { copyFile, mkdtemp, readFile, rm, symlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { text } from 'node:stream/consumers'
import { test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { freePort } from '../../src/engines/engine-access.ts'
import { cleanEnv } from '../support/offpeak-process.ts'

const ROOT = fileURLToPath(new URL('../..', import.meta.url))
const README = readFileSync(join(ROOT, 'README.md'), 'utf8')

function blocks(language: string): string[] {
  return [...README.matchAll(new RegExp(`^\`\`\`${language}\\n([^]*?)^\`\`\``, 'gm'))].map(
    ([, code = '']) => code,
  )
}

test('the README pasted whole ends with the answers', { timeout: 120_000 }, async ({ signal }) => {
  const folder = await mkdtemp(join(tmpdir(), 'offpeak-readme-'))
  for (const name of ['bin', 'build.ts', 'dist', 'examples', 'node_modules', 'package-lock.json', 'src'])
    await symlink(join(ROOT, name), join(folder, name))
  await copyFile(join(ROOT, 'package.json'), join(folder, 'package.json'))
  const port = String(await freePort())
  const [setUp, tests, ...shell] = blocks('sh')
  // The two set-up commands, which have run before this test.
  assert.deepEqual([setUp, tests], ['npm ci && npm run demo\n', 'npm ci && npm test\n'])
  const [snippet = ''] = blocks('ts')
  await writeFile(join(folder, 'batch.ts'), snippet.replaceAll('8080', port))
  const script = [...shell, 'node batch.ts > from-code.jsonl', 'kill %1', 'wait']
    .join('\n')
    .replaceAll('8080', port)
  const env = cleanEnv({
    OFFPEAK_LISTEN_PORT: port,
    PATH: `${dirname(process.execPath)}:${process.env.PATH}`,
  })
  // A group of its own, so that nothing is left when the script fails.
  const bash = spawn('bash', ['-s'], { cwd: folder, env, detached: true })
  const kill = () => {
    try {
      if (bash.pid !== undefined) process.kill(-bash.pid, 'SIGKILL')
    } catch {}
  }
  signal.addEventListener('abort', kill)
  try {
    bash.stdin.end(script)
    const [out, err] = await Promise.all([text(bash.stdout), text(bash.stderr), once(bash, 'close')])
    assert.match(out, /"status":"completed"/, err)
    for (const name of ['answers.jsonl', 'from-code.jsonl']) {
      const answers = (await readFile(join(folder, name), 'utf8')).trim().split('\n')
      assert.equal(answers.length, 1319, err)
      assert.match(
        answers[0] ?? '',
        /^\{"id":"req_\w+","custom_id":"gsm8k-0001","response":\{"status_code":200/,
      )
    }
    // The last thing on the screen.
    assert.match(out.trim().split('\n').at(-1) ?? '', /"custom_id":"gsm8k-0003"/)
  } finally {
    kill()
    await rm(folder, { recursive: true, force: true, maxRetries: 5 })
  }
})
