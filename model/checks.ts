// What `npm run model` checks: each model within its bounds, then once for each guard, which is taken out. The bounds not
// named here are those of the model's .cfg file.

type Bounds = Readonly<Record<string, string | number>>

export interface Guard {
  /** What is violated without it. `Deadlock`: work is left that nobody can do. */
  breaks: string
  /** Bounds within which that shows. */
  bounds: Bounds
}

export interface Model {
  /** The checks with all guards, and what differs from the .cfg file. */
  checks: Readonly<Record<string, { bounds: Bounds; without?: readonly string[] }>>
  guards: Readonly<Record<string, Guard>>
}

/** How many faults a behaviour has at most where not all combinations are checked: in the first check of a model, in others. */
export const QUICK_FAULTS = { first: 2, others: 1 }

const noFaults = {
  Leases: { CrashMax: 0, ExpiryMax: 0, LostMax: 0, LateMax: 0, ParkMax: 0 },
  Reservations: { LoseMax: 0, LostMax: 0, LateMax: 0, Costs: '{1}' },
  RemoteBatch: {
    CrashMax: 0,
    ExpiryMax: 0,
    LostMax: 0,
    LateMax: 0,
    CallLostMax: 0,
    GiveUpMax: 0,
    Lines: '{l1}',
  },
}

const twoLines = { Lines: '{l1, l2}', Chunks: '{{l1, l2}}' }

function leases(breaks: string, bounds: Bounds): Guard {
  return { breaks, bounds: { ...noFaults.Leases, ...twoLines, ...bounds } }
}

function reservations(breaks: string, bounds: Bounds): Guard {
  return { breaks, bounds: { ...noFaults.Reservations, ...bounds } }
}

function remoteBatch(breaks: string, bounds: Bounds): Guard {
  return { breaks, bounds: { ...noFaults.RemoteBatch, ...bounds } }
}

export const MODELS: Readonly<Record<string, Model>> = {
  Leases: {
    checks: {
      'three lines of one chunk': { bounds: {} },
      'two chunks': { bounds: { Lines: '{l1, l2}', Chunks: '{{l1}, {l2}}', ParkMax: 0 } },
      'a damaged journal': { bounds: { ...twoLines, CrashMax: 0, DamageMax: 1 } },
    },
    guards: {
      FenceEpoch: leases('BilledOnce', { ExpiryMax: 1, LateMax: 1 }),
      FenceCommit: leases('BilledOnce', { LostMax: 1 }),
      KnowRepeated: leases('Deadlock', { LostMax: 1 }),
      RaiseEpoch: leases('BilledOnce', { ExpiryMax: 1, LateMax: 1 }),
      LockSession: leases('LeasesHaveSessions', { ExpiryMax: 1 }),
      RequeueExpired: leases('LeasesHaveSessions', { ExpiryMax: 1 }),
      ReleaseStrays: leases('Deadlock', { LostMax: 1 }),
      FenceStrays: leases('KnownLeasesHold', { LostMax: 1, LateMax: 1 }),
      ReadJournals: leases('BilledOnce', { CrashMax: 1 }),
      CommitBeforePark: leases('SentOnce', { ParkMax: 1 }),
      SealFinished: leases('SealedWhole', {}),
      FenceReversal: leases('BilledAsRecorded', { CrashMax: 1, LostMax: 1, DamageMax: 1 }),
    },
  },
  Reservations: {
    checks: {
      'a cap of two lines': { bounds: {} },
      'lines may cost as estimated, less or more': { bounds: { Caps: 'AmpleCap', Costs: '{0, 1, 2}' } },
      'the cap is lowered': { bounds: { Caps: 'Lowered' } },
      'the cap is raised': { bounds: { Caps: 'Raised' } },
      'the cap is made': { bounds: { Caps: 'Created', Costs: '{2}' } },
      'another day begins': { bounds: { SpentBefore: 2, DayMax: 2 } },
    },
    guards: {
      LockLimit: reservations('CapKept', {}),
      ReservedFirst: reservations('CapKept', {}),
      FenceReservation: reservations('ReservedAsKnown', { LateMax: 1 }),
      KnowEffective: reservations('ReservedAsKnown', { LostMax: 1 }),
      FenceLease: reservations('NothingLeftReserved', { LoseMax: 1, LateMax: 1 }),
      ReleaseReserved: reservations('NeverNegative', { Caps: 'Created', Costs: '{0, 2}' }),
      ReleaseWithLease: reservations('NothingLeftReserved', { LoseMax: 1 }),
      DrawFunds: reservations('CapKept', { Caps: 'AmpleCap', Costs: '{0, 2}' }),
      ForgiveCommitted: reservations('CapKept', { Caps: 'AmpleCap', Costs: '{0, 2}' }),
      CheckAgain: reservations('CapKept', { Caps: 'Lowered' }),
      ChargeDayReserved: reservations('CapKept', { SpentBefore: 2, DayMax: 1 }),
    },
  },
  RemoteBatch: {
    checks: {
      'two lines': { bounds: {} },
      'three lines': { bounds: { Lines: '{l1, l2, l3}', FaultsMax: 1 } },
      'a worker is suspended for longer than a call may take': {
        bounds: { SuspendMax: 1, CrashMax: 0, LostMax: 0, CallLostMax: 0, GiveUpMax: 0 },
        without: ['CreatedOnce', 'SentOnce'],
      },
    },
    guards: {
      IntendFirst: remoteBatch('CreatedOnce', { CrashMax: 1 }),
      AnnounceFirst: remoteBatch('CreatedOnce', { CrashMax: 1 }),
      AnnounceLeased: remoteBatch('CreatedOnce', { ExpiryMax: 1, CallLostMax: 1, CreationsMax: 3 }),
      LookFirst: remoteBatch('CreatedOnce', { CrashMax: 1 }),
      WaitSettled: remoteBatch('CreatedOnce', { ExpiryMax: 1 }),
      AgeFirst: remoteBatch('CreatedOnce', { ExpiryMax: 1 }),
      LoadRow: remoteBatch('SentOnce', {}),
      CommitFirst: remoteBatch('SentOnce', { CrashMax: 1, Lines: '{l1, l2}' }),
      SettleOnce: remoteBatch('KeptWhileThere', { LateMax: 1 }),
      FenceSettle: remoteBatch('SentOnce', { ExpiryMax: 1, LateMax: 1 }),
      WakeIfEnded: remoteBatch('Deadlock', {}),
      CancelAbandoned: remoteBatch('NothingRuns', { GiveUpMax: 1 }),
      SettleAbandoned: remoteBatch('NothingRuns', { CallLostMax: 1, GiveUpMax: 1 }),
      CancelUnknown: remoteBatch('NothingRuns', { SuspendMax: 1, ExpiryMax: 1 }),
    },
  },
}
