// Programs of others that a test runs, such as nginx: a folder, a port and an end of their own.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { chmod, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { connect } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { TestContext } from 'node:test'
import { setTimeout as wait } from 'node:timers/promises'

export async function folderOf(t: TestContext): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), 'offpeak-program-'))
  // Both drop the rights of root.
  await chmod(folder, 0o755)
  t.after(() => rm(folder, { recursive: true, force: true }))
  return folder
}

/** Resolves when the port accepts connections; the program ends with the test. */
export async function start(t: TestContext, program: string, args: string[], port: number): Promise<void> {
  const child = spawn(program, args, { stdio: ['ignore', 'ignore', 'pipe'] })
  let errors = ''
  child.stderr.on('data', (bytes) => {
    errors += bytes
  })
  const exited = once(child, 'exit')
  t.after(async () => {
    child.kill('SIGTERM')
    await exited
  })
  for (;;) {
    if (child.exitCode !== null) throw new Error(`${program} exited: ${errors}`)
    const socket = connect(port, '127.0.0.1')
    const isUp = await new Promise((resolve) => {
      socket.once('connect', () => resolve(true)).once('error', () => resolve(false))
    })
    socket.destroy()
    if (isUp) return
    await wait(20)
  }
}

export const NGINX = '/usr/sbin/nginx'

/** nginx with this in its `http` block, in a folder of its own; resolves when the port accepts connections. */
export async function startNginx(t: TestContext, folder: string, http: string, port: number): Promise<void> {
  const places = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi']
  const path = join(folder, 'nginx.conf')
  await writeFile(
    path,
    `daemon off; pid ${folder}/nginx.pid; error_log ${folder}/error.log;
events {}
http {
  access_log off;
  ${places.map((name) => `${name}_temp_path ${folder}/${name};`).join(' ')}
  ${http}
}
`,
  )
  await start(t, NGINX, ['-c', path, '-e', join(folder, 'error.log')], port)
}
