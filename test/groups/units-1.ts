import { runGroup } from '../support/test-groups.ts'

await runGroup('units-1')
