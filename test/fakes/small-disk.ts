// A small file system of its own, for tests of what a disk does to those who write on it: it can be filled to the
// last byte, or made read-only and writable again. Needs root.
import { execFileSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout } from 'node:timers/promises'

const SIZE = '24m'
/** Between two attempts to shut out writers: the system refuses while a file is open for writing. */
const BUSY_MS = 1

/** Mounted at a folder, which is made, until it is disposed of. */
export class SmallDisk implements Disposable {
  readonly #folder: string

  constructor(folder: string) {
    this.#folder = folder
    mkdirSync(folder, { recursive: true })
    execFileSync('mount', ['-t', 'tmpfs', '-o', `size=${SIZE}`, 'offpeak', folder], { stdio: 'ignore' })
  }

  /** Takes all the room that is left, to the last byte. */
  fill(): void {
    for (let bytes = 1 << 20; bytes > 0; bytes >>= 1)
      try {
        for (;;) writeFileSync(this.#filler, Buffer.alloc(bytes, 1), { flag: 'a' })
      } catch (error) {
        if (!String(error).includes('ENOSPC')) throw error
      }
  }

  empty(): void {
    rmSync(this.#filler)
  }

  /** Resolves when nothing more can be written: whoever is writing just now finishes first. */
  async freeze(): Promise<void> {
    while (!this.#remount('ro')) await setTimeout(BUSY_MS)
  }

  thaw(): void {
    if (!this.#remount('rw')) throw new Error(`${this.#folder} cannot be made writable again`)
  }

  [Symbol.dispose](): void {
    execFileSync('umount', ['-l', this.#folder], { stdio: 'ignore' })
  }

  #remount(how: 'ro' | 'rw'): boolean {
    try {
      execFileSync('mount', ['-o', `remount,${how}`, this.#folder], { stdio: 'ignore' })
      return true
    } catch {
      return false
    }
  }

  get #filler(): string {
    return join(this.#folder, 'filler')
  }
}

/** Why there can be no small disk here; false where there can. */
export const withoutDisk: string | false = (() => {
  const folder = mkdtempSync(join(tmpdir(), 'offpeak-disk-'))
  try {
    using _ = new SmallDisk(folder)
    return false
  } catch {
    return 'mounting a small file system needs root'
  } finally {
    rmSync(folder, { recursive: true })
  }
})()
