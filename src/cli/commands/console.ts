// console: opens the console in a browser, signed in by a one-time link.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import type { Command } from 'commander'
import { ConsoleLink } from '../../wire/console-session.ts'
import { type ApiFlags, apiCommand, withApi } from '../client/api-command.ts'
import type { Shell } from '../shell.ts'
import { examples } from '../terminal/option-values.ts'
import { printJson } from '../terminal/table.ts'
import { writeLine } from '../terminal/terminal.ts'

interface ConsoleFlags extends ApiFlags {
  open: boolean
}

export function addConsole(program: Command, shell: Shell): void {
  examples(
    apiCommand(program, 'console', 'open the console in a browser, signed in')
      .option('--no-open', 'print the link without opening it')
      .action((flags: ConsoleFlags) => openConsole(shell, flags)),
    'offpeak console',
    'offpeak console --no-open    # for a browser elsewhere',
  )
}

async function openConsole(shell: Shell, flags: ConsoleFlags): Promise<void> {
  const { stdout, stderr } = shell.terminal
  await withApi(shell, flags, async ({ client }) => {
    const link = await client.post(ConsoleLink, '/console/links')
    const url = `${client.baseUrl}${link.path}`
    if (flags.json) printJson(stdout, { url, expires_at: link.expires_at })
    else writeLine(stdout, url)
    writeLine(stderr, 'The link signs in once, within a minute.')
    if (flags.open && !flags.json && !(await opened(url)))
      writeLine(stderr, 'No browser could be started; open the link yourself.')
  })
}

/** What opens a link, by platform. */
const OPENERS: Partial<Record<NodeJS.Platform, readonly [string, ...string[]]>> = {
  darwin: ['open'],
  win32: ['rundll32', 'url.dll,FileProtocolHandler'],
}

/** Whether a browser was started; how it does from then on is its own affair. */
async function opened(url: string): Promise<boolean> {
  const [command, ...args] = OPENERS[process.platform] ?? ['xdg-open']
  const child = spawn(command, [...args, url], { stdio: 'ignore', detached: true })
  child.unref()
  return await once(child, 'spawn').then(
    () => true,
    () => false,
  )
}
