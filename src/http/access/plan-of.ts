// The plan of a caller's project.
import type { Plan } from '../../domain/plan.ts'
import type { Caller } from './auth.ts'

/** Throws, as a fault of ours, when the configuration has lost the plan. */
export function planOf(plans: ReadonlyMap<string, Plan>, caller: Caller): Plan {
  const plan = plans.get(caller.plan)
  if (!plan)
    throw new Error(`the project ${caller.project_id} has the plan "${caller.plan}", which is not configured`)
  return plan
}
