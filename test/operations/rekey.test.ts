// The master key of a service that has files, results and webhooks is changed, and changing it is interrupted.
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { existsSync } from 'node:fs'
import { copyFile, readFile, rm, stat, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { type TestContext, test } from 'node:test'
import { readFreeze } from '../../src/admin/database-freeze.ts'
import { nextKeyPath, oldKeyPath, rekey, switchKeyFile } from '../../src/admin/rekey.ts'
import { masterKeyFromText, readMasterKey } from '../../src/blobs/master-key.ts'
import { rekey as rekeyStores } from '../../src/compose/admin-commands.ts'
import { openDatabase, openStores, register } from '../../src/compose/stores.ts'
import type { EncryptedKey } from '../../src/config/config.ts'
import { signingSecrets } from '../../src/notify/webhook-signature.ts'
import { fakeKms, fakeVault } from '../fakes/key-services.ts'
import { echo, testUpstream } from '../fakes/upstream.ts'
import { configFor, line, TestService } from '../service.ts'

const silent = { info() {}, warn() {}, error() {} }
const tell = (): void => {}
const none = (): undefined => undefined

/** Everything stopped; `output` is what the results must still read as. */
async function stopped() {
  const upstream = await testUpstream(echo)
  const service = await TestService.start(configFor(upstream.base_url))
  const webhook = await service.json<{ id: string; secret: string }>('POST', '/v1/webhooks', {
    url: 'https://example.org/hook',
  })
  const batch = await service.run([line('a'), line('b')])
  const output = await service.content(batch.output_file_id)
  await service.worker.stop()
  // It keeps the old key in memory, and could not read its books in the end.
  service.tampered = true
  const path = join(service.config.data_dir, 'master-key')
  return {
    ...{ service, webhook, batch, output, path, config: service.config },
    async [Symbol.asyncDispose]() {
      await service[Symbol.asyncDispose]()
      await upstream[Symbol.asyncDispose]()
    },
  }
}

/** Results and secrets, as a service that starts now would read them. */
async function assertReadable({ config, batch, output, webhook }: Awaited<ReturnType<typeof stopped>>) {
  const { store, sealed, master } = await openStores(config)
  try {
    const chunk = await store.read
      .selectFrom('chunks')
      .innerJoin('blobs', 'blobs.key', 'chunks.output_blob')
      .selectAll('blobs')
      .where('batch_id', '=', batch.id)
      .executeTakeFirstOrThrow()
    assert.equal((await sealed.readAll(chunk.project_id, chunk)).toString(), output)
    const row = await store.read
      .selectFrom('webhooks')
      .selectAll()
      .where('id', '=', webhook.id)
      .executeTakeFirstOrThrow()
    assert.deepEqual(signingSecrets(master, row, 0), [webhook.secret])
    const registration = await register({ store }, config, silent)
    await registration.close()
  } finally {
    await store.close()
  }
}

test('everything opens under the new key, and a process with the old one does not start', async () => {
  await using one = await stopped()
  const old = await readMasterKey(one.path)
  const report = await rekeyStores(one.config, { tell }, none)
  const now = await readMasterKey(one.path)
  assert.notEqual(now.id, old.id)
  assert.deepEqual(
    [report.key_id, report.path, report.rewrapped === report.total, report.opened === report.total - 1],
    [now.id, one.path, true, true],
  )
  assert.equal((await readMasterKey(oldKeyPath(one.path))).id, old.id)
  assert.ok(!existsSync(nextKeyPath(one.path)))
  await assertReadable(one)

  await copyFile(oldKeyPath(one.path), one.path)
  await assert.rejects(openStores(one.config), {
    name: 'AdminCommandError',
    message: new RegExp(`is ${now.id}, and this process was given ${old.id}`),
  })
})

test('a second change keeps the key of the first as well', async () => {
  await using one = await stopped()
  const ids = [(await readMasterKey(one.path)).id]
  for (let i = 0; i < 2; i++) ids.push((await rekeyStores(one.config, { tell }, none)).key_id)
  assert.equal((await readMasterKey(oldKeyPath(one.path))).id, ids[1])
  assert.equal((await readMasterKey(`${oldKeyPath(one.path)}.${ids[0]}`)).id, ids[0])
  await assertReadable(one)
})

test('a change that was interrupted anywhere closes the database, and is finished by running it again', async () => {
  await using one = await stopped()
  const old = await readMasterKey(one.path)
  const to = masterKeyFromText(randomBytes(32).toString('base64'), 'test')
  const { store, blobs } = one.service.stores
  for (const pages of [1, 2]) {
    let told = 0
    const crash = rekey(
      { store, blobs },
      { from: old, to },
      {
        rows_at_once: 1,
        tell() {
          if (++told > pages) throw new Error('crash')
        },
      },
    )
    await assert.rejects(crash, /crash/)
    assert.deepEqual(await readFreeze(store.read), { by: 'rekey', from: old.id, to: to.id })
    await assert.rejects(register({ store }, one.config, silent), {
      name: 'AdminCommandError',
      message: /change of its master key from .* was not finished; run "offpeak rekey" again/,
    })
  }
  const wrapped = await store.read.selectFrom('blobs').select('wrapped_key').execute()
  const under = wrapped.map((row) => Buffer.from(row.wrapped_key, 'base64url').subarray(1, 9).toString('hex'))
  assert.ok(under.includes(old.id) && under.includes(to.id), 'the crash was in the middle')

  await assert.rejects(rekeyStores(one.config, { tell }, none), {
    name: 'AdminCommandError',
    message: new RegExp(`a change to master key ${to.id} was begun and not finished`),
  })
  const file = join(one.service.folder, 'new-key')
  await writeFile(file, `${to.secret.export().toString('base64')}\n`, { mode: 0o600 })
  const report = await rekeyStores(one.config, { tell, toFile: file }, none)
  assert.ok(report.rewrapped > 0 && report.rewrapped < report.total)
  assert.equal((await readMasterKey(one.path)).id, to.id)
  await assertReadable(one)
})

test('a change that was interrupted after the file was replaced is finished too', async () => {
  await using one = await stopped()
  const { store, blobs } = one.service.stores
  const from = await readMasterKey(one.path)
  await copyFile(one.path, `${one.path}.kept`)
  await writeFile(nextKeyPath(one.path), `${randomBytes(32).toString('base64')}\n`, { mode: 0o600 })
  const to = await readMasterKey(nextKeyPath(one.path))
  await rekey({ store, blobs }, { from, to })
  await switchKeyFile(one.path)
  const report = await rekeyStores(one.config, { tell }, none)
  assert.deepEqual([report.key_id, report.rewrapped], [to.id, 0])
  await assertReadable(one)
})

test('while the service runs, or is at rest for a moment only, the key is not changed', async () => {
  await using upstream = await testUpstream(echo)
  await using service = await TestService.start(configFor(upstream.base_url))
  const refused = {
    name: 'AdminCommandError',
    message: /cannot be changed: 1 process of the service .* is running; stop them all first/,
  }
  await assert.rejects(rekeyStores(service.config, { tell }, none), refused)
  await service.worker.stop()
  const api = await register(service.stores, service.config, silent)
  await assert.rejects(rekeyStores(service.config, { tell }, none), refused)
  assert.equal(await readFreeze(service.stores.store.read), null)
  await api.close()
  service.tampered = true
  await rekeyStores(service.config, { tell }, none)
})

test('the new key may come from a variable, and the old one is then taken out of its place', async () => {
  await using one = await stopped()
  const text = randomBytes(32).toString('base64')
  const id = masterKeyFromText(text, 'test').id
  await assert.rejects(rekeyStores(one.config, { tell, toEnv: 'NEW' }, none), /variable NEW is not set/)
  const report = await rekeyStores(one.config, { tell, toEnv: 'NEW' }, () => text)
  assert.deepEqual([report.key_id, report.path, existsSync(one.path)], [id, null, false])
  const config = { ...one.config, master_key: text }
  await assertReadable({ ...one, config })

  // And from there to the next one, with the key in a variable on both sides.
  const next = randomBytes(32).toString('base64')
  await assert.rejects(rekeyStores(config, { tell }, none), /name the new one with --to-env NAME/)
  await rekeyStores(config, { tell, toEnv: 'NEXT' }, () => next)
  await assertReadable({ ...one, config: { ...config, master_key: next } })
})

test('without the key that wrapped something, nothing is changed', async () => {
  await using one = await stopped()
  const kept = await readFile(one.path)
  await rm(one.path)
  const stranger = `${randomBytes(32).toString('base64')}\n`
  await writeFile(one.path, stranger, { mode: 0o600 })
  await assert.rejects(rekeyStores(one.config, { tell }, none), {
    name: 'AdminCommandError',
    message: /the master key of this database is [0-9a-f]{16}, and this process was given [0-9a-f]{16}/,
  })
  assert.equal(await readFile(one.path, 'utf8'), stranger)
  await writeFile(one.path, kept)
  assert.equal((await stat(one.path)).mode & 0o777, 0o600)
  const store = await openDatabase(one.config)
  assert.equal(await readFreeze(store.read), null)
  await store.close()
  await rm(nextKeyPath(one.path))
  await assertReadable(one)
})

/** The configurations of a key in `path` by each service. */
async function keyServices(t: TestContext, path: string) {
  const [vault, kms] = [await fakeVault(), await fakeKms()]
  Object.assign(process.env, { AWS_ACCESS_KEY_ID: 'id', AWS_SECRET_ACCESS_KEY: 'secret' })
  t.after(async () => {
    for (const name of ['AWS_ACCESS_KEY_ID', 'AWS_SECRET_ACCESS_KEY']) delete process.env[name]
    await Promise.all([vault.close(), kms.close()])
  })
  const transit = { address: vault.url, mount: 'transit', key_id: 'offpeak', namespace: null }
  const keys = {
    vault: { path, by: 'vault_transit', ...transit, token: 's.token', token_file: null },
    kms: { path, by: 'aws_kms', key_id: 'alias/offpeak', region: 'eu-west-1', address: kms.url },
    command: { path, by: 'command', decrypt: ['base64', '-d'], encrypt: ['base64'] },
  } satisfies Record<string, EncryptedKey>
  return { vault, kms, keys }
}

test('the key moves from its file to each service that encrypts it and back, and opens at each start', async (t) => {
  await using one = await stopped()
  const sealed = join(one.service.folder, 'master-key.encrypted')
  const { keys } = await keyServices(t, sealed)
  let config = one.config
  const ids = new Set<string>()
  for (const encrypted_key of [
    keys.vault,
    keys.kms,
    keys.command,
    { ...keys.kms, path: `${sealed}-2` },
    null,
  ]) {
    const toConfig = { ...config, encrypted_key }
    const report = await rekeyStores(config, { tell, toConfig }, none)
    assert.equal(report.path, encrypted_key?.path ?? one.path)
    assert.ok(!ids.has(report.key_id), 'it is another key')
    ids.add(report.key_id)
    config = toConfig
    await assertReadable({ ...one, config })
    if (encrypted_key) assert.ok(!existsSync(one.path), 'the key lies nowhere as it is')
    else assert.ok(!existsSync(`${sealed}-2`) && existsSync(`${sealed}-2.old`))
  }
})

test('a key is renewed by its own service, and one that a service made as raw bytes is taken', async (t) => {
  await using one = await stopped()
  const path = join(one.service.folder, 'master-key.encrypted')
  const { vault, keys } = await keyServices(t, path)
  // As `vault write transit/datakey/wrapped/offpeak` prints it.
  await writeFile(path, `vault:v1:${randomBytes(32).toString('base64')}\n`)
  const config = { ...one.config, encrypted_key: keys.vault }
  await rekeyStores(one.config, { tell, toConfig: config }, none)
  const before = await readFile(path, 'utf8')
  await assertReadable({ ...one, config })
  await rekeyStores(config, { tell }, none)
  assert.notEqual(await readFile(path, 'utf8'), before)
  assert.equal(await readFile(oldKeyPath(path), 'utf8'), before)
  vault.calls.length = 0
  await assertReadable({ ...one, config })
  assert.deepEqual(vault.calls, ['POST /v1/transit/decrypt/offpeak'], 'one call at a start')
})

test('a service that does not decrypt the key keeps a process from starting, and says why', async (t) => {
  await using one = await stopped()
  const path = join(one.service.folder, 'master-key.encrypted')
  const { vault, kms, keys } = await keyServices(t, path)
  const config = { ...one.config, encrypted_key: keys.vault }
  await rekeyStores(one.config, { tell, toConfig: config }, none)
  const starts = (encrypted_key: EncryptedKey, message: RegExp): Promise<void> =>
    assert.rejects(openStores({ ...config, encrypted_key }), { name: 'MasterKeyError', message })
  vault.failure = { status: 503, body: { errors: ['Vault is sealed'] } }
  await starts(
    keys.vault,
    /^Vault \(transit\/offpeak\) did not decrypt the master key .*master-key\.encrypted \(503 .*Vault is sealed.*\); this process starts once it does, and running ones go on without it$/,
  )
  vault.failure = null
  await starts({ ...keys.vault, token: 'other' }, /403 .*permission denied/)
  await starts({ ...keys.vault, address: 'http://127.0.0.1:9' }, /\(127\.0\.0\.1:9: .+\)/)
  await starts({ ...keys.kms, key_id: 'alias/other' }, /AWS KMS \(alias\/other\) .*NotFoundException/)
  kms.failure = { status: 200, body: {} }
  await starts(keys.kms, /its answer has no Plaintext/)
  await starts(
    { ...keys.command, decrypt: ['sh', '-c', 'echo no identity >&2; exit 3'] },
    /ended with 3: no identity/,
  )
  await starts({ ...keys.command, decrypt: ['offpeak-no-such-program'] }, /ENOENT/)
  await starts({ ...keys.command, decrypt: ['echo', 'short'] }, /made of .* is not 32 bytes/)
  await rm(path)
  await starts(keys.vault, /there is no encrypted master key at .*; restore the file/)
})
