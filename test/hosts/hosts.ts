// The hosts that deploy/hosts/run has made: programs on them, and connections between them that are cut and restored.
import { type ChildProcess, execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { createInterface } from 'node:readline'

export type HostName =
  | 'client'
  | 'api'
  | 'worker-a'
  | 'worker-b'
  | 'postgres'
  | 'bucket'
  | 'model'
  | 'pgbouncer'

/** As numbered by deploy/hosts/run. */
const NUMBERS: Record<HostName, number> = {
  client: 1,
  api: 2,
  'worker-a': 3,
  'worker-b': 4,
  postgres: 5,
  bucket: 6,
  model: 7,
  pgbouncer: 8,
}
const { OFFPEAK_HOSTS_PREFIX = '', OFFPEAK_HOSTS_NETWORK = '' } = process.env
const LOG_LINES = 400

export interface Program {
  child: ChildProcess
  /** Its first line on standard output. */
  ready: string
  /** The last lines of its log. */
  log: string[]
  /** Resolves with its exit code. */
  ended: Promise<number | null>
}

export function addressOf(host: HostName): string {
  return `${OFFPEAK_HOSTS_NETWORK}.${NUMBERS[host]}`
}

/** Runs a program on a host; resolves with its first line. */
export async function start(
  host: HostName,
  command: readonly string[],
  env: NodeJS.ProcessEnv,
): Promise<Program> {
  const child = spawn('ip', ['netns', 'exec', OFFPEAK_HOSTS_PREFIX + host, ...command], {
    env,
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  const log: string[] = []
  createInterface({ input: child.stderr }).on('line', (row) => {
    log.push(row)
    if (log.length > LOG_LINES) log.shift()
  })
  const ended = once(child, 'exit').then(([code]) => code as number | null)
  const lines = createInterface({ input: child.stdout })
  const ready = await Promise.race([
    once(lines, 'line').then(([row]) => String(row)),
    ended.then((code) => {
      throw new Error(`${command.join(' ')} on ${host} ended with ${code}:\n${log.join('\n')}`)
    }),
  ])
  return { child, ready, log, ended }
}

/** Drops every packet between two hosts, in both directions; neither of them is told. */
export function cut(host: HostName, from: HostName): void {
  firewall(host, '-A', from)
}

export function restore(host: HostName, from: HostName): void {
  firewall(host, '-D', from)
}

function firewall(host: HostName, action: '-A' | '-D', from: HostName): void {
  for (const rule of [
    ['OUTPUT', '-d'],
    ['INPUT', '-s'],
  ] as const) {
    const [chain, side] = rule
    const iptables = ['iptables', '-w', action, chain, side, addressOf(from), '-j', 'DROP']
    execFileSync('ip', ['netns', 'exec', OFFPEAK_HOSTS_PREFIX + host, ...iptables])
  }
}
