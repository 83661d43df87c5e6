// The process that prepares the console's files; it ends when they are sent.
import { prepareAssets } from './prepare-assets.ts'

process.send?.(prepareAssets(), undefined, undefined, () => process.disconnect?.())
