// Model servers behind a real nginx and reached through a real squid: certificates, client certificates, query strings,
// tunnels, plain requests, passwords, and what either says when it is the one that fails.
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { existsSync } from 'node:fs'
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { type TestContext, test } from 'node:test'
import type { BackendResult } from '../../src/backends/backend.ts'
import { type OpenAiBackendOptions, openaiBackend } from '../../src/backends/openai/openai-backend.ts'
import { listUpstreamModels } from '../../src/backends/openai/server-facts.ts'
import { freePort } from '../../src/engines/engine-access.ts'
import { cert, key } from '../fakes/certificate.ts'
import { folderOf, NGINX, start, startNginx } from '../fakes/programs.ts'
import { sendTo } from '../fakes/scripted-backend.ts'
import { testUpstream } from '../fakes/upstream.ts'
import { line, TestService } from '../service.ts'

const SQUID = '/usr/sbin/squid'
const PASSWORDS = '/usr/lib/squid/basic_ncsa_auth'
const withNginx = { skip: existsSync(NGINX) ? false : 'nginx is not installed' }
const withSquid = {
  skip: existsSync(NGINX) && existsSync(PASSWORDS) ? false : 'nginx and squid are not both installed',
}
const CA = Buffer.from(cert)
const BODY = JSON.stringify({ model: 'm', messages: [{ role: 'user', content: 'hi' }] })
const PEOPLE = { user: 'batch', password: 'pa:ss/w@rd' }

/** Passes `/v1/` on to `target`, with TLS; on the second port only for clients with a certificate. */
async function nginx(t: TestContext, target: string): Promise<{ port: number; strictPort: number }> {
  const folder = await folderOf(t)
  const [port, strictPort] = [await freePort(), await freePort()]
  await writeFile(join(folder, 'cert.pem'), cert)
  await writeFile(join(folder, 'key.pem'), key)
  const server = (listen: number, more: string): string => `
    server {
      listen 127.0.0.1:${listen} ssl;
      ssl_certificate ${folder}/cert.pem;
      ssl_certificate_key ${folder}/key.pem;
      ${more}
      location /v1/ { proxy_pass ${target}; }
      location /down/ { proxy_pass http://127.0.0.1:1; }
    }`
  const http = `client_max_body_size 64k;
  ${server(port, '')}
  ${server(strictPort, `ssl_client_certificate ${folder}/cert.pem; ssl_verify_client on;`)}`
  await startNginx(t, folder, http, port)
  return { port, strictPort }
}

async function squid(t: TestContext): Promise<number> {
  const folder = await folderOf(t)
  const port = await freePort()
  const hash = execFileSync('openssl', ['passwd', '-apr1', PEOPLE.password], { encoding: 'utf8' }).trim()
  await writeFile(join(folder, 'passwords'), `${PEOPLE.user}:${hash}\n`)
  await writeFile(
    join(folder, 'squid.conf'),
    `http_port 127.0.0.1:${port}
auth_param basic program ${PASSWORDS} ${folder}/passwords
acl known proxy_auth REQUIRED
http_access allow known
http_access deny all
cache deny all
access_log none
cache_log /dev/null
pid_filename none
coredump_dir ${folder}
visible_hostname localhost
shutdown_lifetime 0 seconds
`,
  )
  await start(t, SQUID, ['-N', '-f', join(folder, 'squid.conf')], port)
  return port
}

async function ask(
  options: Partial<OpenAiBackendOptions> & { base_url: string },
  body = BODY,
): Promise<BackendResult> {
  const backend = openaiBackend({ name: 'u', timeout_ms: 10_000, connections_max: 2, ...options })
  try {
    return await sendTo(backend, {
      endpoint: '/v1/chat/completions',
      body: Buffer.from(body),
      project_id: 'p',
    })
  } finally {
    await backend.close()
  }
}

test(
  'behind nginx with a private authority, lines and the list of models get through',
  withNginx,
  async (t) => {
    await using upstream = await testUpstream()
    upstream.models = { data: [{ id: 'm', max_model_len: 77 }] }
    const { port } = await nginx(t, new URL(upstream.base_url).origin)
    const base_url = `https://localhost:${port}/v1?api-version=2026-01-01`
    const certificates = () => ({ ca: CA })
    assert.equal((await ask({ base_url, certificates })).kind, 'answered')
    assert.equal(upstream.calls[0]?.path, '/v1/chat/completions?api-version=2026-01-01')
    assert.equal(upstream.calls[0]?.bytes.toString(), BODY)
    const [model] = await listUpstreamModels(base_url, { certificates })
    assert.equal(model?.context_window, 77)

    const untrusted = await ask({ base_url })
    assert.match(untrusted.kind === 'failed' ? String(untrusted.operatorReason) : '', /self-signed/)
    const large = await ask({ base_url, certificates }, JSON.stringify({ messages: 'x'.repeat(100_000) }))
    assert.equal(large.kind === 'refused' && `${large.status} ${large.code}`, '413 upstream_rejected')
    const down = await ask({ base_url: `https://localhost:${port}/down`, certificates })
    assert.equal(down.kind === 'failed' && `${down.status} ${down.code}`, '502 upstream_unavailable')
    assert.equal(upstream.calls.length, 1)
  },
)

test('nginx that asks for a client certificate gets the configured one', withNginx, async (t) => {
  await using upstream = await testUpstream()
  upstream.models = { data: [{ id: 'm' }] }
  const { strictPort } = await nginx(t, new URL(upstream.base_url).origin)
  const base_url = `https://localhost:${strictPort}/v1`
  const without = await ask({ base_url, certificates: () => ({ ca: CA }) })
  assert.notEqual(without.kind, 'answered')
  const certificates = () => ({ ca: CA, cert: CA, key: Buffer.from(key) })
  assert.equal((await ask({ base_url, certificates })).kind, 'answered')
  assert.equal((await listUpstreamModels(base_url, { certificates }))[0]?.id, 'm')
  assert.equal(upstream.calls.length, 1)
})

test(
  'through squid, lines are sent in a tunnel to TLS and whole to plain HTTP, with a password',
  withSquid,
  async (t) => {
    await using upstream = await testUpstream()
    upstream.models = { data: [{ id: 'm' }] }
    const { port } = await nginx(t, new URL(upstream.base_url).origin)
    const proxyPort = await squid(t)
    const { user, password } = PEOPLE
    const proxy = `http://${user}:${encodeURIComponent(password)}@127.0.0.1:${proxyPort}`
    const base_url = `https://localhost:${port}/v1?a=b`
    const certificates = () => ({ ca: CA })
    assert.equal((await ask({ base_url, certificates, proxy })).kind, 'answered')
    assert.equal((await ask({ base_url: upstream.base_url, proxy })).kind, 'answered')
    assert.deepEqual(
      upstream.calls.map(({ path }) => path),
      ['/v1/chat/completions?a=b', '/v1/chat/completions'],
    )
    for (const via of [{ base_url, certificates }, { base_url: upstream.base_url }])
      assert.equal((await listUpstreamModels(via.base_url, { ...via, proxy }))[0]?.id, 'm')

    const stranger = `http://127.0.0.1:${proxyPort}`
    const tunnel = await ask({ base_url, certificates, proxy: stranger })
    assert.match(tunnel.kind === 'failed' ? String(tunnel.operatorReason) : '', /answered CONNECT with 407/)
    const plain = await ask({ base_url: upstream.base_url, proxy: stranger })
    assert.equal(plain.kind === 'failed' && plain.status, 407)
    assert.ok(!JSON.stringify([tunnel, plain]).includes(password))
    // Squid says itself that nobody is there, in the words of a server that is busy.
    const nobody = await ask({ base_url: `http://127.0.0.1:${await freePort()}/v1`, proxy })
    assert.equal(nobody.kind === 'throttled' && nobody.status, 503)
    assert.equal(upstream.calls.length, 2)
  },
)

test(
  'for a server that is gone behind nginx or squid, lines spill over to the next tier',
  withSquid,
  async (t) => {
    await using hosted = await testUpstream()
    const nobody = await freePort()
    const { port } = await nginx(t, `http://127.0.0.1:${nobody}`)
    const file = join(await folderOf(t), 'ca.pem')
    await writeFile(file, cert)
    const { user, password } = PEOPLE
    const proxy = `proxy: "http://${user}:${encodeURIComponent(password)}@127.0.0.1:${await squid(t)}"`
    const ways = {
      'nginx, 502': `base_url: "https://localhost:${port}/v1", ca_file: "${file}"`,
      'squid, 503': `base_url: "http://127.0.0.1:${nobody}/v1", ${proxy}`,
      'squid, CONNECT': `base_url: "https://127.0.0.1:${nobody}/v1", ca_file: "${file}", ${proxy}`,
    }
    for (const [way, server] of Object.entries(ways)) {
      const known = hosted.calls.length
      await using service = await TestService.start(`
models:
  - id: m
    spill: {when_down: 50ms}
    upstreams:
      - {type: openai, name: local, ${server}}
      - {type: openai, name: hosted, base_url: "${hosted.base_url}", tier: 1}
retry: {backoff_min: 5ms, backoff_max: 20ms}
worker: {flush_interval: 20ms}`)
      const batch = await service.run([line('a'), line('b'), line('c')])
      assert.deepEqual(batch.request_counts, { total: 3, completed: 3, failed: 0 }, way)
      assert.equal(hosted.calls.length, known + 3, way)
    }
  },
)
