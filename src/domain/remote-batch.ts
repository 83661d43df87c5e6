// The states of a batch at a batch API, and the legal transitions between them. `intended`: it is announced, and a file
// may have been uploaded. `creating`: it may have been created. `open`: it is there. `ended`: its results may be read.
// `recorded`: nothing more of it will be recorded here. `abandoned`: it was given up, and may go on there. `done`: nothing
// is left to do.

export const REMOTE_BATCH_STATES = [
  'intended',
  'creating',
  'open',
  'ended',
  'recorded',
  'abandoned',
  'done',
] as const

export type RemoteBatchState = (typeof REMOTE_BATCH_STATES)[number]

export const REMOTE_BATCH_TRANSITIONS: Readonly<Record<RemoteBatchState, readonly RemoteBatchState[]>> = {
  intended: ['creating', 'recorded', 'abandoned', 'done'],
  creating: ['creating', 'open', 'recorded', 'abandoned'],
  // `abandoned`: that it is there was stored after its worker had stopped waiting for that, and given it up.
  open: ['ended', 'abandoned'],
  ended: ['recorded', 'abandoned'],
  recorded: ['done'],
  abandoned: ['recorded', 'done'],
  done: [],
}

/** States in which lines are at the batch API, or have results there that are not recorded. */
export const UNRECORDED_STATES = [
  'intended',
  'creating',
  'open',
  'ended',
] as const satisfies RemoteBatchState[]

/** Throws if the table does not have the transition: a mistake of this program. */
export function assertRemoteTransition(id: string, from: RemoteBatchState, to: RemoteBatchState): void {
  if (!REMOTE_BATCH_TRANSITIONS[from].includes(to))
    throw new Error(`the remote batch ${id} cannot become ${to} from ${from}`)
}
