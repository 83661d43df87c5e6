import assert from 'node:assert/strict'
import { test } from 'node:test'
import { providerAt, providerOf } from './gen-ai.ts'

test('a provider is known by the host of its address, and any other server by the API that it answers', () => {
  const known = {
    'https://team.openai.azure.com/openai/v1': 'azure.ai.openai',
    'https://api.anthropic.com/v1': 'anthropic',
    'https://bedrock-runtime.eu-west-1.amazonaws.com/openai/v1': 'aws.bedrock',
    'https://generativelanguage.googleapis.com/v1beta/openai': 'gcp.gemini',
    'https://europe-west4-aiplatform.googleapis.com/v1': 'gcp.vertex_ai',
    'https://api.mistral.ai/v1': 'mistral_ai',
    'https://api.x.ai/v1': 'x_ai',
    'http://vllm:8000/v1': null,
    'https://notx.ai.example/v1': null,
  }
  for (const [address, provider] of Object.entries(known))
    assert.equal(providerAt(address), provider, address)
  assert.equal(providerOf(null, '/v1/chat/completions'), 'openai')
  assert.equal(providerOf(null, '/v1/messages'), 'anthropic')
  assert.equal(providerOf('x_ai', '/v1/messages'), 'x_ai')
})
