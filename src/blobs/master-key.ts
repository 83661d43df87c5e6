// The master key, which wraps the data key of every blob. It comes as text (an environment variable, read by config/) or
// from a file that only its owner may read. It is never printed: its bytes stay inside a KeyObject, and messages show
// the key's ID.
import { createHmac, createSecretKey, type KeyObject, randomBytes, randomUUID } from 'node:crypto'
import { constants } from 'node:fs'
import { link, open, unlink } from 'node:fs/promises'
import { dirname, join, resolve } from 'node:path'
import { ExplainedError } from '../domain/errors.ts'
import { errnoOf, makeFolder, syncFolder } from './folders.ts'

const KEY_BYTES = 32
/** 64 characters of base64 and room for a line break are far below this. */
const FILE_BYTES_MAX = 1024
const OTHERS_MAY = 0o077
const HOW_TO_MAKE = 'make one with: openssl rand -base64 32'

export interface MasterKey {
  /** 16 hex digits that tell master keys apart and say nothing about them. */
  readonly id: string
  readonly secret: KeyObject
}

/** There is no usable master key. The message names the source and the fix, and never contains text of the key. */
export class MasterKeyError extends ExplainedError {
  constructor(message: string, cause?: unknown) {
    super(message, { cause })
    this.name = 'MasterKeyError'
  }
}

/**
 * The key that `text` spells: 32 bytes as base64, base64url or hex. `where` names its source in errors, for
 * example "OFFPEAK_MASTER_KEY". Throws MasterKeyError.
 */
export function masterKeyFromText(text: string, where: string): MasterKey {
  const spelled = text.trim()
  if (spelled === '') throw new MasterKeyError(`${where} is empty; ${HOW_TO_MAKE}`)
  const bytes = decode(spelled)
  if (bytes === null) {
    throw new MasterKeyError(
      `${where} is not ${KEY_BYTES} bytes in base64, base64url or hex (it has ${spelled.length} characters); ${HOW_TO_MAKE}`,
    )
  }
  if (bytes.every((byte) => byte === bytes[0]))
    throw new MasterKeyError(`${where} is one byte repeated, which anybody can guess; ${HOW_TO_MAKE}`)
  const secret = createSecretKey(bytes)
  const id = createHmac('sha256', secret).update('offpeak master key id').digest('hex').slice(0, 16)
  return { id, secret }
}

/** The key in the file at `path`, which must be closed to everyone but its owner. Throws MasterKeyError. */
export async function readMasterKey(path: string): Promise<MasterKey> {
  const key = await readIfThere(path)
  if (key !== null) return key
  throw new MasterKeyError(
    `there is no master key at ${path}; restore the file, or set OFFPEAK_MASTER_KEY to the key it held`,
  )
}

/** The key at `path`; on first start a fresh one, of which all processes that start at once get the same. */
export async function readOrCreateMasterKey(path: string): Promise<MasterKey> {
  const there = await readIfThere(path)
  if (there !== null) return there
  try {
    await create(path)
  } catch (cause) {
    throw new MasterKeyError(
      `cannot write a new master key to ${path} (${reason(cause)}); make its folder writable, or set OFFPEAK_MASTER_KEY`,
      cause,
    )
  }
  return await readMasterKey(path)
}

function decode(text: string): Buffer | null {
  if (/^[0-9a-fA-F]{64}$/.test(text)) return Buffer.from(text, 'hex')
  // Node reads both alphabets of base64 as one.
  if (/^[A-Za-z0-9+/_-]{43}=?$/.test(text)) return Buffer.from(text, 'base64')
  return null
}

async function readIfThere(path: string): Promise<MasterKey | null> {
  let text: string
  try {
    await using file = await open(path, constants.O_RDONLY)
    const { mode, size } = await file.stat()
    // Windows has no such bits and reports every file as open to all.
    if (process.platform !== 'win32' && mode & OTHERS_MAY) {
      throw new MasterKeyError(
        `the master key ${path} is open to other users (mode ${(mode & 0o777).toString(8).padStart(4, '0')}); run: chmod 600 ${path}`,
      )
    }
    if (size > FILE_BYTES_MAX) throw new MasterKeyError(`${path} is no master key: it has ${size} bytes`)
    text = await file.readFile('utf8')
  } catch (cause) {
    if (cause instanceof MasterKeyError) throw cause
    if (errnoOf(cause) === 'ENOENT') return null
    throw new MasterKeyError(`cannot read the master key ${path} (${reason(cause)})`, cause)
  }
  return masterKeyFromText(text, `the master key file ${path}`)
}

/** Written whole under another name, then linked: the name appears once, complete, or another process was first. */
async function create(path: string): Promise<void> {
  const folder = dirname(resolve(path))
  makeFolder(folder)
  const temporary = join(folder, `.master-key-${randomUUID()}`)
  try {
    {
      await using file = await open(temporary, 'wx', 0o600)
      await file.writeFile(`${randomBytes(KEY_BYTES).toString('base64url')}\n`)
      await file.sync()
    }
    await link(temporary, path).catch((cause) => {
      if (cause.code !== 'EEXIST') throw cause
    })
  } finally {
    await unlink(temporary).catch(() => {})
  }
  await syncFolder(folder)
}

function reason(cause: unknown): string {
  return cause instanceof Error ? cause.message : String(cause)
}
