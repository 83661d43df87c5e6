// Programs that encrypt and decrypt: each reads its standard input and writes its standard output, and no shell is between.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { buffer, text } from 'node:stream/consumers'
import { CALL_MS_MAX, type KeyService } from '../key-service.ts'

interface KeyCommands {
  decrypt: readonly string[]
  /** Null: no key can be made, only one that is there can be used. */
  encrypt: readonly string[] | null
}

export function keyCommand({ decrypt, encrypt }: KeyCommands): KeyService {
  return {
    name: `the command ${decrypt[0]}`,
    decrypt: (stored) => run(decrypt, stored),
    async encrypt(plain) {
      if (encrypt === null) throw new Error('master_key.encrypt is missing, so no key can be encrypted')
      return await run(encrypt, plain)
    },
  }
}

/** Its standard output. What it says on standard error is in the error alone. */
async function run([program = '', ...words]: readonly string[], input: Buffer): Promise<Buffer> {
  const child = spawn(program, words, { stdio: 'pipe', timeout: CALL_MS_MAX, killSignal: 'SIGKILL' })
  // A program may end without reading; its status tells.
  child.stdin.on('error', () => {})
  child.stdin.end(input)
  const [output, said, [status]] = await Promise.all([
    buffer(child.stdout),
    text(child.stderr),
    once(child, 'close'),
  ])
  if (status !== 0)
    throw new Error(`${program} ended with ${status ?? 'a signal'}: ${said.trim().slice(-200)}`)
  return output
}
