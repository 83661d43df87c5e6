// A real Prometheus with the project's rules, where its programs are installed.
import assert from 'node:assert/strict'
import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'

const RULES = fileURLToPath(new URL('../../deploy/prometheus/rules.yaml', import.meta.url))

/** For `skip` of a test. */
export const withoutPrometheus: string | false =
  spawnSync('prometheus', ['--version']).status !== 0 && 'needs the programs of the package prometheus'

interface Sample {
  metric: Record<string, string>
  value: [number, string]
}

export interface Prometheus {
  url: string
  query(query: string): Promise<Sample[]>
  stop(): Promise<void>
}

/** Scrapes `hosts` every second, with the key if one is needed, and with our rules; keeps its files in `folder`. */
export async function startPrometheus(
  folder: string,
  hosts: readonly string[],
  keyFile?: string,
): Promise<Prometheus> {
  const key = keyFile === undefined ? '' : `authorization: {credentials_file: ${keyFile}}, `
  const config = join(folder, 'prometheus.yaml')
  await writeFile(
    config,
    `
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [${RULES}]
scrape_configs: [{job_name: offpeak, ${key}static_configs: [{targets: ${JSON.stringify(hosts)}}]}]
`,
  )
  const flags = [`--config.file=${config}`, `--storage.tsdb.path=${join(folder, 'tsdb')}`]
  const child = spawn('prometheus', [...flags, '--web.listen-address=127.0.0.1:0', '--log.level=info'], {
    stdio: ['ignore', 'ignore', 'pipe'],
  })
  const exited = once(child, 'exit')
  let url = ''
  for await (const row of createInterface({ input: child.stderr })) {
    url = /Listening on.*address=(127\.0\.0\.1:\d+)/.exec(row)?.[1] ?? url
    if (url !== '' && /ready to receive web requests/.test(row)) break
  }
  child.stderr.resume()
  return {
    url: `http://${url}`,
    async query(query) {
      const response = await fetch(`http://${url}/api/v1/query?query=${encodeURIComponent(query)}`)
      const body = (await response.json()) as { status: string; error?: string; data: { result: Sample[] } }
      assert.equal(body.status, 'success', `${query}: ${body.error}`)
      return body.data.result
    },
    async stop() {
      child.kill()
      await exited
    },
  }
}
