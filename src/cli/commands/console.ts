// console: opens the console in a browser by a one-time link. All users of a machine can read the arguments of its
// processes, so that the browser is given a page that only its user can read, and that leads to the link.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { rm, writeFile } from 'node:fs/promises'
import { homedir } from 'node:os'
import { join } from 'node:path'
import type { Command } from 'commander'
import { makeFolder } from '../../blobs/folders.ts'
import { ConsoleLink } from '../../wire/project.ts'
import { type Connection, withApi } from '../client/connect.ts'
import type { Environment, JsonFlags, Shell } from '../shell.ts'
import { examples, jsonCommand } from '../terminal/option-values.ts'
import { printJson, writeLine } from '../terminal/terminal.ts'

interface ConsoleFlags extends JsonFlags {
  open: boolean
}

export function addConsole(program: Command, shell: Shell): void {
  examples(
    jsonCommand(program, 'console', 'open the console in a browser, without a key')
      .option('--no-open', 'print the link without opening it')
      .action((flags: ConsoleFlags) => openConsole(shell, flags)),
    'offpeak console',
    'offpeak console --no-open    # for a browser elsewhere',
  )
}

async function openConsole(shell: Shell, flags: ConsoleFlags): Promise<void> {
  const { stdout, stderr } = shell.terminal
  const open = async ({ client }: Connection): Promise<void> => {
    const link = await client.post(ConsoleLink, '/console/links')
    const url = `${client.baseUrl}${link.path}`
    if (flags.json) printJson(stdout, { url, expires_at: link.expires_at })
    else writeLine(stdout, url)
    writeLine(stderr, 'The link signs in once, within a minute.')
    if (flags.open && !flags.json && !(await opened(url, shell.env)))
      writeLine(stderr, 'No browser could be started; open the link yourself.')
  }
  await withApi(shell, flags, open, false)
}

/** The program that opens a page, by platform. */
const OPENERS: Partial<Record<NodeJS.Platform, readonly [string, ...string[]]>> = {
  darwin: ['open'],
  win32: ['rundll32', 'url.dll,FileProtocolHandler'],
}

/** Opens a URL; returns whether a browser was started. */
async function opened(url: string, env: Environment): Promise<boolean> {
  const [command, ...args] = OPENERS[process.platform] ?? ['xdg-open']
  try {
    const page = await pageTo(url, env)
    const child = spawn(command, [...args, page], { stdio: 'ignore', detached: true, env })
    child.unref()
    await once(child, 'spawn')
    return true
  } catch {
    return false
  }
}

/** Writes a page that leads to `url`. It stays until the next one; its link works once, within a minute. */
async function pageTo(url: string, env: Environment): Promise<string> {
  const folder = join(env.XDG_CACHE_HOME || join(homedir(), '.cache'), 'offpeak')
  const path = join(folder, 'console.html')
  makeFolder(folder)
  await rm(path, { force: true })
  const target = url.replaceAll('&', '&amp;').replaceAll('"', '&quot;').replaceAll('<', '&lt;')
  await writeFile(
    path,
    `<!doctype html><meta charset="utf-8"><title>Offpeak</title><meta http-equiv="refresh" content="0; url=${target}">\n`,
    { mode: 0o600, flag: 'wx' },
  )
  return path
}
