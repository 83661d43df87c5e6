// What a reload changes in a service, and what it refuses.
import assert from 'node:assert/strict'
import { mkdtemp, mkdtempDisposable, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { askToReload } from '../../src/compose/control-socket.ts'
import { serve } from '../../src/compose/serve.ts'
import type { Config } from '../../src/config/config.ts'
import { loadConfig } from '../../src/config/load.ts'
import { callApi } from '../support/api.ts'
import { OffpeakProcess } from '../support/offpeak-process.ts'

const SIM = [{ id: 'm', upstreams: [{ type: 'sim' }] }]
const ENGINE = [
  { id: 'm', upstreams: [{ type: 'openai', engine: { command: ['no-such-server', '{port}'] } }] },
]

test('settings show what a reload changed, and several workers take up no server that each would start', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'offpeak-reload-'))
  const configOf = (models: object, env: Record<string, string> = {}): Config =>
    loadConfig({
      env: { OFFPEAK_MODELS: JSON.stringify(models), ...env },
      overrides: { data: folder, port: '0', log_level: 'silent' },
      cwd: folder,
    })
  const started = configOf(SIM, { OFFPEAK_WORKER_PROCESSES: '2' })
  let next = started
  const running = await serve(started, { role: 'all', reload: async () => next })
  try {
    const key = (await readFile(join(folder, 'api-key'), 'utf8')).trim()
    const models = async (): Promise<string> => {
      const answer = await callApi({ url: String(running.url), key }, 'GET', '/v1/settings')
      const { configuration } = JSON.parse(answer) as { configuration: { models: object } }
      return JSON.stringify(configuration.models)
    }
    const reload = async (config: Config): Promise<string | null | undefined> => {
      next = config
      return [...(await askToReload(folder)).values()][0]?.error
    }
    assert.equal(await reload(configOf([...SIM, { ...SIM[0], id: 'another' }])), null)
    assert.match(await models(), /another/)
    assert.match((await reload(configOf(ENGINE))) ?? '', /2 worker processes would start every engine/)
    assert.match(await models(), /another/)
  } finally {
    await running.stop()
    await rm(folder, { recursive: true })
  }
})

/** For `node --import`: the service gets a SIGHUP when its API begins to listen. */
const EARLY_SIGNAL = `
import { Server } from 'node:net'
const { listen } = Server.prototype
Server.prototype.listen = function (...args) {
  if (args[0]?.port !== undefined) process.kill(process.pid, 'SIGHUP')
  return listen.apply(this, args)
}`

test('a SIGHUP that comes while a service starts is a reload after that', async () => {
  await using folder = await mkdtempDisposable(join(tmpdir(), 'offpeak-reload-'))
  const preload = `data:text/javascript,${encodeURIComponent(EARLY_SIGNAL)}`
  const env = { NODE_OPTIONS: `--import=${preload}` }
  const service = new OffpeakProcess(['serve', '--data', folder.path, '--port', '0'], { env })
  try {
    const isReloaded = Promise.withResolvers<void>()
    service.onLine = (line) => {
      if (line.includes('configuration reloaded')) isReloaded.resolve()
    }
    await service.ready
    await isReloaded.promise
  } finally {
    await service.endGroup('SIGKILL')
  }
})
