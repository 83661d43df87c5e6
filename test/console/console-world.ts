// A whole service with two batches, and a Chromium before it, for the tests of the console.

import type { Browser } from 'playwright-core'
import { createKey } from '../../src/admin/create-key.ts'
import { PROJECT_SCOPES, SCOPES } from '../../src/domain/api-key.ts'
import { type S3Server, s3Server, TEST_BUCKET } from '../fakes/s3-server.ts'
import { completion, echo, send, type TestUpstream, testUpstream } from '../fakes/upstream.ts'
import { configFor, line, TestService, type WireBatch } from '../service.ts'
import { launchChromium } from './chromium.ts'

const HOSTILE = '<script>alert(1)</script><img src=x onerror=alert(2)> \u001b[31mred\u001b[0m \u202eevil'

export const PAGES = [
  '/overview',
  '/batches',
  '/requests',
  '/new',
  '/files',
  '/usage',
  '/limits',
  '/webhooks',
  '/audit',
  '/keys',
  '/servers',
  '/settings',
]

export interface ConsoleWorld extends AsyncDisposable {
  browser: Browser
  upstream: TestUpstream
  s3: S3Server
  service: TestService
  operator: string
  tenant: string
  batch: WireBatch
  /** Its requests ask for answers by a schema. */
  structured: WireBatch
}

export async function consoleWorld(): Promise<ConsoleWorld> {
  const browser = await launchChromium()
  const upstream = await testUpstream(answer)
  const s3 = await s3Server()
  const bucket = `buckets: [{url: "s3://${TEST_BUCKET}?endpoint=${s3.endpoint}", projects: [team]}]`
  const env = { AWS_ACCESS_KEY_ID: 'id', AWS_SECRET_ACCESS_KEY: 'secret' }
  const service = await TestService.start(configFor(upstream.base_url, bucket), { env })
  // In a clone whose console has changed the first page waits for the build.
  await fetch(`${service.url}/console`)
  const issue = (scopes: readonly (typeof SCOPES)[number][]) =>
    createKey(service.stores.store, service.stores.store.clock, service.config.region, {
      project: 'team',
      plan: 'payg',
      scopes,
    })
  const operator = (await issue(SCOPES)).key
  const tenant = (await issue(PROJECT_SCOPES)).key
  service.key = operator
  const lines = Array.from({ length: 60 }, (_, i) => line(`line-${i + 1}`, i % 6 === 0 ? 'fail' : 'hello'))
  const properties = { label: { type: 'string' }, score: { type: 'integer' } }
  const response_format = { type: 'json_schema', json_schema: { name: 'x', schema: { properties } } }
  const structured = await service.run(
    Array.from({ length: 300 }, (_, i) =>
      line(`answer-${i + 1}`, i === 1 ? 'fail' : 'label', { response_format }),
    ),
  )
  const batch = await service.run([line('hostile', 'hostile'), ...lines], { metadata: { entity: 'user:42' } })
  return {
    ...{ browser, upstream, s3, service, operator, tenant, batch, structured },
    async [Symbol.asyncDispose]() {
      await browser.close()
      await service[Symbol.asyncDispose]()
      await s3[Symbol.asyncDispose]()
      await upstream.close()
    },
  }
}

/** A third of the lines says what a browser must not obey; one in six fails. */
export function answer(call: Parameters<typeof echo>[0]): void {
  const text = call.body.messages.at(-1)?.content
  if (text === 'fail')
    send(
      call.response,
      400,
      JSON.stringify({ error: { message: 'the prompt is not allowed', code: 'bad_prompt' } }),
    )
  else if (text === 'hostile') {
    const message = { role: 'assistant', content: HOSTILE }
    send(
      call.response,
      200,
      JSON.stringify({
        id: 'x',
        object: 'chat.completion',
        created: 1,
        model: 'm',
        choices: [{ index: 0, message, finish_reason: 'stop' }],
        usage: { prompt_tokens: 1, completion_tokens: 1, total_tokens: 2 },
      }),
    )
  } else if (text === 'label')
    send(call.response, 200, completion(JSON.stringify({ label: '=2+2', score: 4 })))
  else echo(call)
}

/** The request ID of the first line of a batch. */
export function lineRequest(batchId: string): string {
  return `req_${batchId.slice('batch_'.length)}0000001`
}
