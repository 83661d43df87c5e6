// The configuration in force, as operators see it.
import { type Static, Type } from 'typebox'

export const Settings = Type.Object(
  {
    object: Type.Literal('settings'),
    version: Type.String(),
    configuration: Type.Record(Type.String(), Type.Unknown(), {
      description: 'As it is in force, defaults included; secrets are shown as `"(hidden)"`.',
    }),
  },
  { title: 'Settings' },
)

export type Settings = Static<typeof Settings>
