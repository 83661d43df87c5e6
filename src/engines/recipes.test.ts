import assert from 'node:assert/strict'
import { test } from 'node:test'
import { commandOf, RECIPES } from './recipes.ts'

const values = { program: '/opt/server', model: '/m/x.gguf', name: 'x', slots: 4, context: 8192 }

const EXPECTED: Record<string, string> = {
  'llama.cpp':
    '/opt/server --model /m/x.gguf --alias x --host {socket} --parallel 4 --ctx-size 8192 --metrics --jinja',
  vllm: '/opt/server serve /m/x.gguf --served-model-name x --uds {socket} --enable-prompt-tokens-details',
  sglang:
    '/opt/server serve --model-path /m/x.gguf --served-model-name x --host 127.0.0.1 --port {port} --config {files}/key.yaml',
  ollama: '/opt/server serve',
  mlx: '/opt/server --model /m/x.gguf --host 127.0.0.1 --port {port}',
}

for (const recipe of RECIPES)
  test(`${recipe.title} gets the command line that it knows`, () => {
    assert.equal(commandOf(recipe, values).join(' '), EXPECTED[recipe.name])
  })

test('every engine listens on a socket, or on a port of the loopback address, and no key is in its arguments', () => {
  for (const { command, env } of RECIPES) {
    const words = [...command, ...Object.values(env)].join(' ')
    assert.ok(words.includes('{socket}') || (words.includes('{port}') && words.includes('127.0.0.1')), words)
    assert.ok(!command.join(' ').includes('{api_key}'), command.join(' '))
  }
})
