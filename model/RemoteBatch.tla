----------------------------- MODULE RemoteBatch -----------------------------
\* A batch at a batch API: created once, recorded once, and not left running when its lines are answered elsewhere.
\*
\* A worker has a chunk, stores the intent, says that it is about to create the batch, creates it, and parks the chunk. Any
\* worker sees the batch end there. The one that claims the chunk then records what was answered, and sends what was not
\* elsewhere. That a commit counts once is the result of Leases, so it is one step. A call takes effect at the batch API
\* before the settling time is over, or never, whether its worker still waits or not; only a worker that is suspended sends
\* it later.
EXTENDS Integers, FiniteSets, Sequences, TLC, Steps

CONSTANTS
  Workers, Lines, None,
  CrashMax,      \* How many processes crash.
  ExpiryMax,     \* How many leases expire while their process runs.
  LostMax,       \* How many transactions take effect without an answer.
  LateMax,       \* How many transactions take effect later than their worker waits.
  CallLostMax,   \* How many calls to create the batch are left without an answer.
  GiveUpMax,     \* How often the batch API is given up, since it takes no file or does not answer.
  SuspendMax,    \* How many workers are suspended before their call for longer than the settling time.
  FaultsMax,     \* How many of all of these.
  CreationsMax,  \* How often the batch is to be created before its lines are answered elsewhere.
  \* Guards; each is taken out to see an invariant fail.
  IntendFirst,       \* The intent is stored before anything is sent.
  AnnounceFirst,     \* A worker says that it creates the batch before it does,
  AnnounceLeased,    \* ... and under its lease.
  LookFirst,         \* A batch that may be there is looked for before it is created again,
  WaitSettled,       \* ... which is done only when the settling time was over,
  AgeFirst,          \* ... before it was looked for.
  LoadRow,           \* A worker that claims the chunk leaves the lines alone that are at the batch API.
  CommitFirst,       \* What was answered is committed before the batch counts as recorded.
  SettleOnce,        \* A batch that is recorded or given up is not settled again.
  FenceSettle,       \* A batch is settled under the lease of its chunk, or when that is sealed.
  WakeIfEnded,       \* A chunk that is parked after its batch has ended is ready at once.
  CancelAbandoned,   \* A batch that was given up is cancelled there; it is looked for first,
  SettleAbandoned,   \* ... and is not there only when the settling time was over.
  CancelUnknown      \* A worker that finds its batch to be the second one cancels it.

VARIABLES
  chunk,      \* Its state and epoch, and whether it is parked until the batch ends.
  row,        \* The row of the batch; "none" before the intent.
  aged,       \* Whether the settling time since the last announcement is over.
  batches,    \* At the batch API: in which state each is, and which lines it has answered.
  calls,      \* The workers whose call to create it is on its way.
  run,        \* By worker: what it knows of the chunk that it has open.
  late,       \* Transactions that their workers have given up on.
  kept,       \* How often the lines at the batch API are reserved.
  billed,     \* By line.
  twice,      \* Whether a line was sent elsewhere although the batch API had it, or had answered it.
  count

vars == <<chunk, row, aged, batches, calls, run, late, kept, billed, twice, count>>

HasFaultLeft ==
  count.crash + count.expiry + count.lost + count.late + count.call + count.giveUp + count.suspend < FaultsMax
Happens(fault, max) == count[fault] < max /\ HasFaultLeft /\ count' = [count EXCEPT ![fault] = @ + 1]
Unrecorded == {"intended", "creating", "open", "ended"}
IsThere == row.state \in Unrecorded
Finished == {l \in Lines : billed[l] > 0}
HasLease(epoch) == chunk.state = "leased" /\ chunk.epoch = epoch

CanStep(name) == \E s \in RemoteBatchSteps : s.name = name /\ s.from = row.state
Stepped(name) == [row EXCEPT !.state = (CHOOSE s \in RemoteBatchSteps : s.name = name /\ s.from = row.state).to]
ChunkStepped(name) ==
  LET s == CHOOSE s \in ChunkSteps : s.name = name /\ s.from = chunk.state
  IN [state |-> s.to, epoch |-> chunk.epoch + s.epoch, isLong |-> FALSE]

Init ==
  /\ chunk = [state |-> "ready", epoch |-> 0, isLong |-> FALSE]
  /\ row = [state |-> "none", lines |-> {}, batch |-> 0, isGivenUp |-> FALSE, isForsaken |-> FALSE]
  /\ aged = TRUE
  /\ batches = <<>>
  /\ calls = {}
  /\ run = [w \in Workers |-> None]
  /\ late = {}
  /\ kept = 0
  /\ billed = [l \in Lines |-> 0]
  /\ twice = FALSE
  /\ count = [crash |-> 0, expiry |-> 0, lost |-> 0, late |-> 0, call |-> 0, giveUp |-> 0, suspend |-> 0, creation |-> 0]

-----------------------------------------------------------------------------
\* Transactions

Intend(t) ==
  IF HasLease(t.epoch) /\ row.state = "none"
  THEN /\ row' = [state |-> "intended", lines |-> t.lines, batch |-> 0, isGivenUp |-> FALSE, isForsaken |-> FALSE]
       /\ kept' = kept + 1
       /\ UNCHANGED <<chunk, aged>>
  ELSE UNCHANGED <<chunk, row, aged, kept>>

MayAnnounce(t) == (AnnounceLeased => HasLease(t.epoch)) /\ row.state = t.from
Announce(t) ==
  IF MayAnnounce(t) THEN row' = Stepped("announce") /\ aged' = FALSE /\ UNCHANGED <<chunk, kept>>
  ELSE UNCHANGED <<chunk, row, aged, kept>>

MayOpen == IntendFirst => row.state = "creating"
Open(t) ==
  IF MayOpen
  THEN /\ row' = [state |-> "open", lines |-> t.lines, batch |-> t.batch, isGivenUp |-> FALSE, isForsaken |-> FALSE]
       /\ kept' = IF row.state = "none" THEN 1 ELSE kept
       /\ UNCHANGED <<chunk, aged>>
  ELSE UNCHANGED <<chunk, row, aged, kept>>

MaySettle(t) ==
  /\ FenceSettle => chunk.epoch = t.epoch /\ chunk.state \in {"leased", "sealed"}
  /\ SettleOnce => row.state \in Unrecorded
Settle(t) ==
  IF MaySettle(t)
  THEN /\ row' = [row EXCEPT !.state = (CHOOSE s \in RemoteBatchSteps : s.name = t.how).to,
                             !.isGivenUp = @ \/ t.how = "abandon"]
       /\ kept' = IF chunk.state = "sealed" THEN kept ELSE kept - 1
       /\ UNCHANGED <<chunk, aged>>
  ELSE UNCHANGED <<chunk, row, aged, kept>>

Park(t) ==
  IF HasLease(t.epoch)
  THEN /\ chunk' = IF WakeIfEnded /\ t.isLong /\ row.state = "ended"
                   THEN [ChunkStepped("park") EXCEPT !.state = "ready"]
                   ELSE [ChunkStepped("park") EXCEPT !.isLong = t.isLong]
       /\ UNCHANGED <<row, aged, kept>>
  ELSE UNCHANGED <<chunk, row, aged, kept>>

Transaction(t) ==
  CASE t.step = "intend" -> Intend(t)
    [] t.step = "announce" -> Announce(t)
    [] t.step = "open" -> Open(t)
    [] t.step = "settle" -> Settle(t)
    [] t.step = "park" -> Park(t)

\* A worker that can only leave the chunk to the next claim.
Failed(r) == [r EXCEPT !.is = "failed", !.row = "none", !.aged = FALSE, !.found = 0, !.batch = 0]

\* A worker runs a transaction, and is in the state `known` with the answer, or in `unknown` without one. `n`: the count.
Run(w, t, known, unknown, n) ==
  \/ Transaction(t) /\ run' = [run EXCEPT ![w] = known] /\ UNCHANGED late /\ count' = n
  \/ /\ count.lost < LostMax /\ HasFaultLeft
     /\ Transaction(t) /\ run' = [run EXCEPT ![w] = unknown] /\ UNCHANGED late
     /\ count' = [n EXCEPT !.lost = @ + 1]
  \/ /\ count.late < LateMax /\ HasFaultLeft
     /\ late' = late \union {t} /\ run' = [run EXCEPT ![w] = unknown]
     /\ UNCHANGED <<chunk, row, aged, kept>>
     /\ count' = [n EXCEPT !.late = @ + 1]

TakeEffect ==
  \E t \in late :
    /\ late' = late \ {t}
    /\ Transaction(t)
    /\ UNCHANGED <<batches, calls, run, billed, twice, count>>

-----------------------------------------------------------------------------
\* What a worker does with the chunk

\* A worker without the lease that can have no effect any more.
IsLost(r) ==
  /\ chunk.epoch # r.epoch \/ chunk.state = "ready"
  /\ AnnounceLeased /\ FenceSettle /\ IntendFirst /\ AnnounceFirst /\ LoadRow
  /\ r.is \notin {"announced", "calling", "created", "second", "looking"} /\ ~(r.is = "open" /\ r.row = "creating")

Is(w, state) == run[w] # None /\ run[w].is = state

Claim(w) ==
  /\ IF run[w] = None THEN TRUE ELSE IsLost(run[w])
  /\ chunk.state = "ready"
  /\ chunk' = ChunkStepped("claim")
  /\ run' = [run EXCEPT ![w] = [epoch |-> chunk.epoch + 1, is |-> "open", row |-> row.state,
                                fresh |-> {}, aged |-> FALSE, found |-> 0, batch |-> 0]]
  /\ UNCHANGED <<row, aged, batches, calls, late, kept, billed, twice, count>>

\* It stores the intent, again if need be; else it leaves the chunk to the next claim.
Remaining(w) == Lines \ (Finished \union run[w].fresh)
IntendBatch(w) ==
  LET r == run[w]
      t == [step |-> "intend", epoch |-> r.epoch, lines |-> Remaining(w)]
      ok == [r EXCEPT !.is = "open", !.row = "intended"]
  IN
  /\ run[w] # None /\ IntendFirst /\ Remaining(w) # {}
  /\ \/ Is(w, "open") /\ r.row = "none"
     \/ Is(w, "intending")
  /\ Run(w, t, IF HasLease(r.epoch) THEN ok ELSE None, [r EXCEPT !.is = "intending"], count)
  /\ UNCHANGED <<batches, calls, billed, twice>>

AnnounceCreation(w) ==
  LET r == run[w]
      t == [step |-> "announce", epoch |-> r.epoch, from |-> r.row]
      n == [count EXCEPT !.creation = @ + 1]
  IN
  /\ AnnounceFirst
  /\ \/ Is(w, "open") /\ r.row = "intended"
     \/ Is(w, "missing") /\ count.creation < CreationsMax
  /\ Run(w, t, IF MayAnnounce(t) THEN [r EXCEPT !.is = "announced", !.row = "creating"] ELSE None,
         Failed(r), n)
  /\ UNCHANGED <<batches, calls, billed, twice>>

Call(w) ==
  /\ \/ Is(w, "announced")
     \/ ~AnnounceFirst /\ Is(w, "open") /\ run[w].row = "intended"
     \/ ~IntendFirst /\ Is(w, "open") /\ run[w].row = "none"
  /\ calls' = calls \union {w}
  /\ run' = [run EXCEPT ![w].is = "calling"]
  /\ UNCHANGED <<chunk, row, aged, batches, late, kept, billed, twice, count>>

\* The batch API creates a batch. A worker that does not wait any more never hears of it.
Create(w) ==
  /\ w \in calls
  /\ calls' = calls \ {w}
  /\ batches' = Append(batches, [state |-> "running", answered |-> {}])
  /\ \/ /\ Is(w, "calling")
        /\ run' = [run EXCEPT ![w].is = "created", ![w].batch = Len(batches) + 1]
        /\ UNCHANGED count
     \/ /\ Is(w, "calling")
        /\ Happens("call", CallLostMax)
        /\ run' = [run EXCEPT ![w].is = "unsure"]
     \/ ~Is(w, "calling") /\ UNCHANGED <<run, count>>
  /\ UNCHANGED <<chunk, row, aged, late, kept, billed, twice>>

\* The call is refused, or never arrives, or the worker waits no longer for it.
CallFails(w) ==
  /\ w \in calls
  /\ \/ calls' = calls \ {w} /\ run' = (IF Is(w, "calling") THEN [run EXCEPT ![w].is = "refused"] ELSE run) /\ UNCHANGED count
     \/ /\ Is(w, "calling") /\ Happens("call", CallLostMax)
        /\ run' = [run EXCEPT ![w].is = "unsure"]
        /\ calls' \in {calls, calls \ {w}}
  /\ UNCHANGED <<chunk, row, aged, batches, late, kept, billed, twice>>

\* The batch may be there: the worker reads how long ago it was announced, then it looks for it.
Look(w) ==
  LET r == run[w] IN
  /\ Is(w, "open") /\ r.row = "creating"
  /\ run' = [run EXCEPT ![w].is = "looking", ![w].aged = AgeFirst /\ aged,
                        ![w].found = IF AgeFirst THEN 0 ELSE Len(batches)]
  /\ UNCHANGED <<chunk, row, aged, batches, calls, late, kept, billed, twice, count>>

Find(w) ==
  LET r == run[w]
      found == IF ~LookFirst THEN 0 ELSE IF AgeFirst THEN Len(batches) ELSE r.found
      isOver == ~WaitSettled \/ (IF AgeFirst THEN r.aged ELSE aged)
  IN
  /\ Is(w, "looking")
  /\ run' = [run EXCEPT ![w] = IF found > 0 THEN [r EXCEPT !.is = "created", !.batch = 1, !.aged = FALSE, !.found = 0]
                              ELSE IF isOver THEN [r EXCEPT !.is = "missing", !.aged = FALSE, !.found = 0] ELSE Failed(r)]
  \* The others of its name are cancelled.
  /\ batches' = [n \in DOMAIN batches |-> IF 1 < n /\ n <= found /\ batches[n].state = "running"
                                          THEN [batches[n] EXCEPT !.state = "ended"] ELSE batches[n]]
  /\ UNCHANGED <<chunk, row, aged, calls, late, kept, billed, twice, count>>

OpenBatch(w) ==
  LET r == run[w]
      t == [step |-> "open", batch |-> r.batch, lines |-> IF row.state = "none" THEN Remaining(w) ELSE row.lines]
  IN
  /\ Is(w, "created")
  /\ Run(w, t, IF MayOpen THEN [r EXCEPT !.is = "open", !.row = "open", !.batch = 0] ELSE [r EXCEPT !.is = "second"],
         Failed(r), count)
  /\ UNCHANGED <<batches, calls, billed, twice>>

\* The row has gone on without this worker.
CancelSecond(w) ==
  LET r == run[w] IN
  /\ Is(w, "second")
  /\ batches' = IF CancelUnknown /\ row.state # "creating" /\ row.batch # r.batch /\ batches[r.batch].state = "running"
                THEN [batches EXCEPT ![r.batch].state = "ended"] ELSE batches
  /\ run' = [run EXCEPT ![w] = Failed(r)]
  /\ UNCHANGED <<chunk, row, aged, calls, late, kept, billed, twice, count>>

\* Lines that are not at the batch API are answered by another server.
SendElsewhere(w) ==
  LET r == run[w] IN
  /\ Is(w, "open") /\ r.row \notin (IF LoadRow THEN Unrecorded ELSE {})
  /\ Remaining(w) # {}
  /\ run' = [run EXCEPT ![w].fresh = @ \union Remaining(w)]
  /\ twice' = (twice \/ /\ HasLease(r.epoch) /\ ~row.isGivenUp
                        /\ \E l \in Remaining(w) : \/ IsThere /\ l \in row.lines
                                                   \/ \E n \in DOMAIN batches : l \in batches[n].answered)
  /\ UNCHANGED <<chunk, row, aged, batches, calls, late, kept, billed, count>>

\* It reads what the batch API has answered.
Collect(w) ==
  LET r == run[w] IN
  /\ Is(w, "open") /\ r.row = "ended" /\ ~row.isGivenUp
  /\ run' = [run EXCEPT ![w].is = "collected", ![w].fresh = (batches[row.batch].answered \intersect row.lines) \ Finished]
  /\ UNCHANGED <<chunk, row, aged, batches, calls, late, kept, billed, twice, count>>

\* The commit of the last line seals the chunk. A worker without the lease is told so.
Commit(w) ==
  LET r == run[w]
      isLast == Finished \union r.fresh = Lines
  IN
  /\ r # None /\ r.fresh # {}
  /\ IF HasLease(r.epoch)
     THEN /\ billed' = [l \in Lines |-> billed[l] + (IF l \in r.fresh THEN 1 ELSE 0)]
          /\ chunk' = IF isLast THEN ChunkStepped("seal") ELSE chunk
          /\ kept' = IF isLast THEN 0 ELSE kept
          /\ run' = [run EXCEPT ![w] = IF isLast /\ r.is # "collected" THEN None ELSE [r EXCEPT !.fresh = {}]]
     ELSE run' = [run EXCEPT ![w] = None] /\ UNCHANGED <<chunk, billed, kept>>
  /\ UNCHANGED <<row, aged, batches, calls, late, twice, count>>

\* Nothing more of the batch is recorded. What may be there of it: a batch, files, or nothing.
SettleBatch(w) ==
  LET r == run[w]
      \* Its file was not stored, or its batch API is not configured any more.
      isUnsent == Is(w, "open") /\ r.row = "intended"
      hows == CASE Is(w, "settling") -> {r.row}
                [] Is(w, "collected") \/ Is(w, "missing") \/ Is(w, "refused") -> {"record"}
                [] isUnsent -> {"forget", "record", "abandon"}
                [] OTHER -> {"abandon"}
      isOurs == ~FenceSettle \/ (chunk.epoch = r.epoch /\ chunk.state \in {"leased", "sealed"})
      known == IF ~isOurs THEN Failed(r)
               ELSE IF chunk.state = "sealed" THEN None
               ELSE [r EXCEPT !.is = IF r.is = "collected" /\ ~CommitFirst THEN "settled" ELSE "open", !.row = "settled", !.aged = FALSE, !.found = 0]
      isGivenUp == isUnsent \/ Is(w, "unsure") \/ Is(w, "looking")
  IN
  /\ \/ Is(w, "settling")
     \/ Is(w, "collected") /\ (CommitFirst => r.fresh = {})
     \/ Is(w, "missing") /\ count.creation >= CreationsMax
     \/ Is(w, "refused")
     \/ Is(w, "open") /\ r.row = "ended" /\ row.isGivenUp
     \/ isGivenUp /\ count.giveUp < GiveUpMax /\ HasFaultLeft
  /\ \E how \in hows :
       LET t == [step |-> "settle", epoch |-> r.epoch, how |-> how] IN
       Run(w, t, known, [r EXCEPT !.is = "settling", !.row = how, !.aged = FALSE, !.found = 0],
           IF isGivenUp THEN [count EXCEPT !.giveUp = @ + 1] ELSE count)
  /\ UNCHANGED <<batches, calls, billed, twice>>

\* While the batch is open, until it has ended; else for a moment.
ParkChunk(w) ==
  LET r == run[w]
      t == [step |-> "park", epoch |-> r.epoch, isLong |-> r.is = "open"]
  IN
  /\ \/ Is(w, "open") /\ r.row = "open"
     \/ r # None /\ r.is \in {"intending", "announced", "unsure", "failed", "settling"}
  /\ r.fresh = {}
  /\ Run(w, t, None, Failed(r), count)
  /\ UNCHANGED <<batches, calls, billed, twice>>

-----------------------------------------------------------------------------
\* Looks at the batch, which need no lease

\* It has ended there; or it is given up.
End ==
  /\ CanStep("end")
  /\ \/ batches[row.batch].state # "running" /\ row' = Stepped("end") /\ UNCHANGED count
     \/ row' = [Stepped("end") EXCEPT !.isGivenUp = TRUE] /\ Happens("giveUp", GiveUpMax)
  /\ chunk' = IF chunk.state = "parked" THEN ChunkStepped("wake") ELSE chunk
  /\ UNCHANGED <<aged, batches, calls, run, late, kept, billed, twice>>

\* The worker that recorded it crashed before it said so.
SettleSealed ==
  /\ row.state = "ended" /\ chunk.state = "sealed"
  /\ row' = Stepped("record")
  /\ UNCHANGED <<chunk, aged, batches, calls, run, late, kept, billed, twice, count>>

Cancelled == [n \in DOMAIN batches |-> IF CancelAbandoned /\ batches[n].state = "running"
                                       THEN [batches[n] EXCEPT !.state = "ended"] ELSE batches[n]]
CancelGivenUp ==
  /\ CanStep("cancel")
  /\ batches = <<>> => ~SettleAbandoned \/ aged
  /\ batches' = Cancelled
  /\ row' = Stepped("cancel")
  /\ UNCHANGED <<chunk, aged, calls, run, late, kept, billed, twice, count>>

\* A batch that was given up could not be cancelled for long: what it leaves there is left to the operator.
Forsake ==
  /\ row.state = "abandoned"
  /\ row' = [Stepped("tidy") EXCEPT !.isForsaken = TRUE]
  /\ UNCHANGED <<chunk, aged, batches, calls, run, late, kept, billed, twice, count>>

\* Its files are deleted. One that was given up has to have ended there, if it is known.
Tidy ==
  /\ row.state = "recorded"
  /\ row.isGivenUp /\ row.batch # 0 /\ CancelAbandoned => batches[row.batch].state # "running"
  /\ row' = Stepped("tidy")
  /\ UNCHANGED <<chunk, aged, batches, calls, run, late, kept, billed, twice, count>>

-----------------------------------------------------------------------------
\* The rest of the world

\* A batch ends with some of its lines answered; also if it is cancelled: its own batch ends, or it is called back because
\* its answers would be late. One that is not cancelled in time is given up.
ApiEnds ==
  \E n \in DOMAIN batches :
    /\ batches[n].state = "running"
    /\ \E answered \in SUBSET row.lines : batches' = [batches EXCEPT ![n] = [state |-> "ended", answered |-> answered]]
    /\ UNCHANGED <<chunk, row, aged, calls, run, late, kept, billed, twice, count>>

\* Whatever was on its way has taken effect by then, but for the call of a worker that is suspended before it.
SettlingTimeEnds ==
  /\ ~aged /\ calls = {}
  /\ IF \E w \in Workers : Is(w, "announced") THEN Happens("suspend", SuspendMax) ELSE UNCHANGED count
  /\ aged' = TRUE
  /\ UNCHANGED <<chunk, row, batches, calls, run, late, kept, billed, twice>>

Wake ==
  /\ chunk.state = "parked" /\ ~chunk.isLong
  /\ chunk' = ChunkStepped("wake")
  /\ UNCHANGED <<row, aged, batches, calls, run, late, kept, billed, twice, count>>

Requeued(epoch) == IF HasLease(epoch) THEN ChunkStepped("requeue") ELSE chunk

Crash(w) ==
  /\ run[w] # None /\ Happens("crash", CrashMax)
  /\ chunk' = Requeued(run[w].epoch)
  /\ run' = [run EXCEPT ![w] = None]
  /\ UNCHANGED <<row, aged, batches, calls, late, kept, billed, twice>>

Expire ==
  /\ chunk.state = "leased" /\ Happens("expiry", ExpiryMax)
  /\ chunk' = ChunkStepped("requeue")
  /\ UNCHANGED <<row, aged, batches, calls, run, late, kept, billed, twice>>

\* A heartbeat finds the lease expired. A call that is under way goes on.
LoseLease(w) ==
  /\ run[w] # None /\ run[w].is \notin {"announced", "calling", "created", "second"} /\ ~HasLease(run[w].epoch) /\ (chunk.state = "sealed" => run[w].is # "collected")
  /\ run' = [run EXCEPT ![w] = None]
  /\ UNCHANGED <<chunk, row, aged, batches, calls, late, kept, billed, twice, count>>

Done ==
  /\ chunk.state = "sealed" /\ row.state \in {"none", "done"}
  /\ UNCHANGED vars

Next ==
  \/ \E w \in Workers :
       \/ Claim(w) \/ IntendBatch(w) \/ AnnounceCreation(w) \/ Call(w) \/ Create(w) \/ CallFails(w)
       \/ Look(w) \/ Find(w) \/ OpenBatch(w) \/ CancelSecond(w)
       \/ SendElsewhere(w) \/ Collect(w) \/ Commit(w) \/ SettleBatch(w) \/ ParkChunk(w)
       \/ Crash(w) \/ LoseLease(w)
  \/ End \/ SettleSealed \/ CancelGivenUp \/ Forsake \/ Tidy
  \/ ApiEnds \/ SettlingTimeEnds \/ Wake \/ Expire \/ TakeEffect \/ Done

Spec == Init /\ [][Next]_vars

\* An announcement that follows another one changes nothing of the row.
TellSteps == row'.state # row.state \/ (aged /\ ~aged') => Tell(row.state, row'.state)

-----------------------------------------------------------------------------
\* Invariants

LegalSteps ==
  [][row.state # "none" /\ row'.state # row.state =>
       \E s \in RemoteBatchSteps : s.from = row.state /\ s.to = row'.state]_row

CreatedOnce == Len(batches) <= 1
BilledOnce == \A l \in Lines : billed[l] <= 1
SentOnce == ~twice
\* What lines at the batch API may cost is reserved while they are there, once.
KeptWhileThere == chunk.state # "sealed" => kept = (IF IsThere THEN 1 ELSE 0)
\* When all is done, nothing runs there that nobody asks for. Of a batch that was created twice, since a worker was suspended,
\* the second is cancelled by that worker.
NothingRuns ==
  /\ row.state = "done" /\ ~row.isForsaken
  /\ count.suspend = 0 \/ \A w \in Workers : run[w] = None \/ run[w].is \notin {"announced", "calling", "created", "second"}
  => calls = {} /\ \A n \in DOMAIN batches : batches[n].state # "running"

\* Epochs count only in relation to that of the chunk, and transactions and workers that can have no effect any more make no
\* difference.
IsOver(t) ==
  LET isPast == chunk.epoch # t.epoch \/ chunk.state \in {"ready", "sealed"} IN
  CASE t.step \in {"intend", "park"} -> isPast
    [] t.step = "announce" -> AnnounceLeased /\ isPast
    [] t.step = "open" -> IntendFirst /\ row.state \notin {"intended", "creating"}
    [] t.step = "settle" -> FenceSettle /\ SettleOnce /\ (chunk.epoch # t.epoch \/ chunk.state \in {"ready", "parked"} \/ ~IsThere)
Age(x) == IF "epoch" \in DOMAIN x THEN [x EXCEPT !.epoch = IF @ = chunk.epoch THEN 0 ELSE 1] ELSE x
View ==
  <<[chunk EXCEPT !.epoch = 0], row, aged, batches, calls,
    [w \in Workers |-> IF run[w] = None THEN <<>> ELSE IF IsLost(run[w]) THEN <<>> ELSE <<Age(run[w])>>],
    {Age(t) : t \in {t \in late : ~IsOver(t)}}, kept, billed, twice, count>>

Symmetry == Permutations(Workers) \union Permutations(Lines)
=============================================================================
