import { runGroup } from '../support/test-groups.ts'

await runGroup('service-3')
