// The caller of a request that has one: every endpoint that is not public.
import assert from 'node:assert'
import type { FastifyRequest } from 'fastify'
import type { Caller } from './auth.ts'

export function callerOf({ caller }: Pick<FastifyRequest, 'caller'>): Caller {
  assert(caller, 'a public endpoint asked who is calling')
  return caller
}
