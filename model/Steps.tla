-------------------------------- MODULE Steps --------------------------------
\* What may become of a row of a chunk, of a row of a remote batch, and of a line of a leased chunk.
\*
\* `npm test` compares RemoteBatchSteps with src/domain/remote-batch.ts and LineSteps with src/dispatch/line-state.ts. The
\* simulation holds every change of a row against ChunkSteps and RemoteBatchSteps.
EXTENDS TLC

\* `epoch` and `seq`: what is added to the epoch and to the number of the last commit.
ChunkSteps == {
  [name |-> "claim", from |-> "ready", to |-> "leased", epoch |-> 1, seq |-> 0],
  [name |-> "close", from |-> "ready", to |-> "leased", epoch |-> 1, seq |-> 0],
  [name |-> "close", from |-> "parked", to |-> "leased", epoch |-> 1, seq |-> 0],
  [name |-> "reserve", from |-> "leased", to |-> "leased", epoch |-> 0, seq |-> 0],
  [name |-> "journal", from |-> "leased", to |-> "leased", epoch |-> 0, seq |-> 1],
  [name |-> "seal", from |-> "leased", to |-> "sealed", epoch |-> 0, seq |-> 1],
  [name |-> "park", from |-> "leased", to |-> "parked", epoch |-> 0, seq |-> 1],
  [name |-> "reject", from |-> "leased", to |-> "ready", epoch |-> 0, seq |-> 1],
  [name |-> "requeue", from |-> "leased", to |-> "ready", epoch |-> 0, seq |-> 0],
  [name |-> "pause", from |-> "ready", to |-> "parked", epoch |-> 0, seq |-> 0],
  [name |-> "wake", from |-> "parked", to |-> "ready", epoch |-> 0, seq |-> 0]
}

RemoteBatchSteps == {
  [name |-> "announce", from |-> "intended", to |-> "creating"],
  [name |-> "announce", from |-> "creating", to |-> "creating"],
  [name |-> "open", from |-> "creating", to |-> "open"],
  [name |-> "end", from |-> "open", to |-> "ended"],
  [name |-> "record", from |-> "intended", to |-> "recorded"],
  [name |-> "record", from |-> "creating", to |-> "recorded"],
  [name |-> "record", from |-> "ended", to |-> "recorded"],
  [name |-> "abandon", from |-> "intended", to |-> "abandoned"],
  [name |-> "abandon", from |-> "creating", to |-> "abandoned"],
  [name |-> "abandon", from |-> "open", to |-> "abandoned"],
  [name |-> "abandon", from |-> "ended", to |-> "abandoned"],
  [name |-> "forget", from |-> "intended", to |-> "done"],
  [name |-> "cancel", from |-> "abandoned", to |-> "recorded"],
  [name |-> "tidy", from |-> "recorded", to |-> "done"],
  [name |-> "tidy", from |-> "abandoned", to |-> "done"]
}

LineSteps ==
  ({"unfunded"} \X {"paused", "unsent", "retrying", "unsubmitted", "remote", "finished", "committed"})
  \union ({"paused"} \X {"unfunded", "unsent", "retrying", "unsubmitted", "finished"})
  \union ({"unsent"} \X {"unfunded", "paused", "following", "searching", "in flight", "unsubmitted", "finished"})
  \union ({"retrying"} \X {"unfunded", "paused", "unsent", "unsubmitted", "finished"})
  \union ({"following"} \X {"unfunded", "paused", "unsent", "retrying", "unsubmitted", "finished"})
  \union ({"searching"} \X {"unfunded", "paused", "unsent", "retrying", "unsubmitted", "finished"})
  \union ({"in flight"} \X {"unfunded", "paused", "unsent", "retrying", "unsubmitted", "finished"})
  \union ({"unsubmitted"} \X {"unfunded", "paused", "unsent", "following", "searching", "remote", "finished"})
  \union ({"remote"} \X {"unfunded", "paused", "unsent", "retrying", "unsubmitted", "finished"})
  \union ({"finished"} \X {"committed"})

\* For an action constraint, which is always true: prints each pair of states when a step from one to the other is first
\* taken, so that model/run.ts finds steps that no behaviour takes.
ASSUME TLCSet(1, {})
Tell(from, to) ==
  IF <<from, to>> \in TLCGet(1) THEN TRUE
  ELSE TLCSet(1, TLCGet(1) \union {<<from, to>>}) /\ PrintT(<<"taken", from, to>>)
==============================================================================
