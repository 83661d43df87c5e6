// A process that takes over an engine, and reports how it ended; what it says goes to its file.
import { type Inheritance, inherit } from '../../src/engines/early-start.ts'

process.once('message', async (inheritance: Inheritance) => {
  const engine = inherit(inheritance, 4).process
  const how = await engine.exited
  process.send?.({ how }, () => process.disconnect?.())
})
