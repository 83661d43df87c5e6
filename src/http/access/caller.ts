// The caller of a request: the project, the key and the plan.
import assert from 'node:assert'
import type { FastifyRequest } from 'fastify'
import type { CompatMode, Scope } from '../../domain/api-key.ts'
import type { Plan } from '../../domain/plan.ts'

export interface Caller {
  project_id: string
  project_name: string
  /** The name of the project's plan. */
  plan: string
  key_id: string
  scopes: ReadonlySet<Scope>
  /** How its answers are rendered, where a call does not say. */
  compat: CompatMode | null
  /** When the session of the console ends that the call was made in (Unix ms); null for a call with a key. */
  session_expires: number | null
}

/** Every endpoint that is not public has one. */
export function callerOf({ caller }: Pick<FastifyRequest, 'caller'>): Caller {
  assert(caller, 'a public endpoint has no caller')
  return caller
}

/** Throws an internal error when the configuration no longer has the plan. */
export function planOf(plans: ReadonlyMap<string, Plan>, caller: Caller): Plan {
  const plan = plans.get(caller.plan)
  if (!plan)
    throw new Error(`the project ${caller.project_id} has the plan "${caller.plan}", which is not configured`)
  return plan
}
