// A project as the API shows it, and the requests of operators that make and change one.
import { type Static, Type } from 'typebox'
import { timestamp } from './timestamp.ts'

export const ProjectObject = Type.Object(
  {
    id: Type.String({ description: 'Begins with `proj_`.' }),
    object: Type.Literal('project'),
    name: Type.String(),
    plan: Type.String(),
    quotas: Type.Record(Type.String(), Type.Union([Type.Integer({ minimum: 0 }), Type.Null()]), {
      description: 'Of its plan; null: unlimited.',
    }),
    created: timestamp('when it was made.'),
  },
  { title: 'Project' },
)

export type ProjectObject = Static<typeof ProjectObject>

const Name = Type.String({ minLength: 1, maxLength: 200, description: 'Unique in the service.' })
const PlanName = Type.String({ description: 'A plan of the configuration.' })

export const CreateProject = Type.Object(
  { name: Name, plan: Type.Optional(PlanName) },
  { title: 'CreateProject', additionalProperties: false },
)

export const UpdateProject = Type.Object(
  { plan: PlanName },
  { title: 'UpdateProject', additionalProperties: false },
)
