import { runGroup } from '../support/test-groups.ts'

await runGroup('times-of-ids')
