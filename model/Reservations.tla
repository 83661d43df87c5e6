----------------------------- MODULE Reservations -----------------------------
\* Reserve, settle and release: what lines may cost is reserved under a cap before they are sent, what they did cost is
\* spent when they are committed, and what a lease has reserved is released with it.
\*
\* Each worker has a chunk of its own here, and every line is projected to cost 1. That a commit takes effect once is the
\* result of Leases, so it is one step. A transaction that reserves takes the steps of READ COMMITTED: it locks the limit
\* and reads one sum, then it reads the other and writes. Its worker may give up on it; then another one has to tell
\* whether it took effect.
EXTENDS Integers, FiniteSets, Sequences, TLC, Steps

CONSTANTS
  Chunks,          \* A chunk is the set of its lines.
  None,
  Costs,           \* What a line may cost.
  Caps,            \* The cap and what it is changed to; Unlimited: there is no limit.
  Unlimited,
  InFlightMax,     \* Of a worker.
  SpentBefore,     \* What others have spent on the second day.
  LoseMax,         \* How many leases are lost, each with what its worker knew.
  LostMax, LateMax,
  FaultsMax,       \* How many of these faults.
  DayMax,          \* How often the clock moves to the other day, forward or back.
  \* Guards; each is taken out to see an invariant fail.
  LockLimit,           \* Of two that reserve, the second sees what the first has reserved.
  ReservedFirst,       \* What is reserved is read before what is spent.
  FenceReservation,    \* A transaction that reserves names the last one that is known to have taken effect,
  KnowEffective,       \* ... and a worker whose transaction was refused learns what the one before did.
  FenceLease,          \* Nothing is reserved without the lease.
  ReleaseReserved,     \* A commit releases what was reserved for its lines, and nothing for a line without.
  ReleaseWithLease,    \* What is reserved for a lease is released with it.
  DrawFunds,           \* What a line costs beyond its reservation is taken from the lines of its worker that are not sent,
  ForgiveCommitted,    \* ... until it is committed and a check has read it.
  CheckAgain,          \* A worker checks its lines again when the cap was changed.
  ChargeDayReserved    \* A line is charged to the day under whose limits it was reserved.

VARIABLES
  cap,       \* The position of the cap in force, in Caps.
  day,       \* The day by the clock: 1 or 2.
  spent,     \* By day.
  reserved,  \* By chunk.
  epoch,     \* By chunk: how many leases it has had.
  seq,       \* By chunk: the number of the last transaction that reserved.
  settled,   \* Lines that are committed or have failed.
  run,       \* By chunk: what its worker knows; None without a lease.
  judging,   \* By chunk: the transaction that reserves now.
  late,      \* Transactions that their workers have given up on.
  early,     \* By day, the cost of lines that were sent under an earlier cap.
  count

vars == <<cap, day, spent, reserved, epoch, seq, settled, run, judging, late, early, count>>

Days == {1, 2}
Before(d) == IF d = 2 THEN SpentBefore ELSE 0
HasLimit == Caps[cap] # Unlimited
Happens(fault, max) ==
  /\ count[fault] < max /\ (fault # "day" => count.lose + count.lost + count.late < FaultsMax)
  /\ count' = [count EXCEPT ![fault] = @ + 1]
RECURSIVE Sum(_, _)
Sum(f, s) == IF s = {} THEN 0 ELSE LET x == CHOOSE x \in s : TRUE IN f[x] + Sum(f, s \ {x})
Max(a, b) == IF a > b THEN a ELSE b
Least(a, b) == IF a < b THEN a ELSE b
Size(s) == Cardinality(s)

Init ==
  /\ cap = 1 /\ day = 1
  /\ spent = [d \in Days |-> Before(d)]
  /\ reserved = [c \in Chunks |-> 0]
  /\ epoch = [c \in Chunks |-> 0]
  /\ seq = [c \in Chunks |-> 0]
  /\ settled = {}
  /\ run = [c \in Chunks |-> None]
  /\ judging = [c \in Chunks |-> None]
  /\ late = {}
  /\ early = [d \in Days |-> 0]
  /\ count = [lose |-> 0, lost |-> 0, late |-> 0, day |-> 0]

-----------------------------------------------------------------------------
\* Lines of a run, in states of Steps:  unfunded ──reserve──► unsent ──send──► in flight ──finish──► finished ──commit──► committed

Of(c, state) == {l \in c : run[c] # None /\ run[c].line[l] = state}

Claim(c) ==
  /\ run[c] = None /\ ~(c \subseteq settled)
  /\ epoch' = [epoch EXCEPT ![c] = @ + 1]
  /\ run' = [run EXCEPT ![c] =
       [line |-> [l \in c |-> IF l \in settled THEN "committed" ELSE "unfunded"],
        cost |-> [l \in c |-> 0],       \* of lines that are done
        charge |-> [l \in c |-> 0],     \* the day to which the line is charged; 0: the one on which it ends
        under |-> [l \in c |-> 0],      \* the cap under which it was sent
        over |-> [l \in c |-> 0],       \* what it cost beyond its reservation
        reserved |-> {},                \* lines that the worker takes for reserved
        kept |-> 0,                     \* how many are reserved although they ended without
        excess |-> 0, committed |-> 0,  \* beyond reservations, until a check has read it; the part that is committed
        cap |-> cap,                    \* the cap that the lines were checked under
        last |-> seq[c], next |-> seq[c], unclear |-> {}]]
  /\ UNCHANGED <<cap, day, spent, reserved, seq, settled, judging, late, early, count>>

Funds(c) == Size(Of(c, "unsent") \intersect run[c].reserved) - run[c].excess

Send(c, l) ==
  LET r == run[c] IN
  /\ l \in Of(c, "unsent") /\ Size(Of(c, "in flight")) < InFlightMax
  /\ DrawFunds /\ l \in r.reserved => Funds(c) >= 1
  /\ run' = [run EXCEPT ![c].line[l] = "in flight", ![c].under[l] = r.cap]
  /\ UNCHANGED <<cap, day, spent, reserved, epoch, seq, settled, judging, late, early, count>>

Finish(c, l) ==
  LET r == run[c] IN
  /\ l \in Of(c, "in flight")
  /\ \E cost \in Costs :
       LET over == IF Caps[r.cap] = Unlimited THEN 0 ELSE Max(0, cost - (IF l \in r.reserved THEN 1 ELSE 0)) IN
       run' = [run EXCEPT ![c].line[l] = "finished", ![c].cost[l] = cost, ![c].over[l] = over, ![c].excess = @ + over,
                          ![c].charge[l] = IF ChargeDayReserved /\ @ # 0 THEN @ ELSE day]
  /\ UNCHANGED <<cap, day, spent, reserved, epoch, seq, settled, judging, late, early, count>>

\* The last commit of a chunk seals it, and ends the lease.
Commit(c) ==
  LET r == run[c]
      done == Of(c, "finished")
      isLast == c \subseteq settled \union done
  IN
  /\ run[c] # None /\ judging[c] = None
  /\ done # {} \/ isLast
  /\ spent' = [d \in Days |-> spent[d] + Sum(r.cost, {l \in done : r.charge[l] = d})]
  /\ early' = [d \in Days |-> early[d] + Sum(r.cost, {l \in done : r.charge[l] = d /\ r.under[l] # cap})]
  /\ settled' = settled \union done
  /\ reserved' = [reserved EXCEPT ![c] = IF isLast THEN 0 ELSE @ - Size(IF ReleaseReserved THEN done \intersect r.reserved ELSE done)]
  /\ run' = [run EXCEPT ![c] =
       IF isLast THEN None
       ELSE [r EXCEPT !.line = [l \in c |-> IF l \in done THEN "committed" ELSE @[l]], !.committed = @ + Sum(r.over, done),
                      !.cost = [l \in c |-> 0], !.charge = [l \in c |-> IF l \in done THEN 0 ELSE @[l]],
                      !.under = [l \in c |-> IF l \in done THEN 0 ELSE @[l]], !.over = [l \in c |-> 0],
                      !.reserved = @ \ done]]
  /\ UNCHANGED <<cap, day, epoch, seq, judging, late, count>>

-----------------------------------------------------------------------------
\* Checks of the limits

IsOver == HasLimit /\ spent[day] + Sum(reserved, Chunks) > Caps[cap]

\* All lines are checked, those in flight without a reservation too, if the cap was changed, if another day has begun, if it
\* is passed, or if the funds do not cover the next line; else only lines that wait.
ChecksAll(c) ==
  \/ run[c].cap # cap \/ IsOver \/ (Of(c, "unsent") # {} /\ Funds(c) < 1)
  \/ \E l \in Of(c, "unsent") : run[c].charge[l] \notin {0, day}
Asked(c, all) ==
  Of(c, "unfunded") \union (IF all THEN Of(c, "unsent") \union (Of(c, "in flight") \ run[c].reserved) ELSE {})

\* Lines of a check are not sent before its end is known.
Begun(r, t) ==
  [r EXCEPT !.line = [l \in DOMAIN @ |-> IF l \in t.lines THEN "unfunded" ELSE @[l]], !.next = t.next]

Request(c, all) ==
  LET asked == Asked(c, all) IN
  [chunk |-> c, epoch |-> epoch[c], last |-> run[c].last, next |-> run[c].next + 1, lines |-> asked \ Of(c, "in flight"),
   flying |-> asked \intersect Of(c, "in flight"), had |-> asked \intersect run[c].reserved]

\* What has ended is committed before all lines are checked.
MayAsk(c) ==
  {t \in {Request(c, all) : all \in IF ChecksAll(c) /\ Of(c, "finished") = {} THEN BOOLEAN ELSE {FALSE}} : t.lines \union t.flying # {}}

MayReserve(t) ==
  /\ FenceLease => epoch[t.chunk] = t.epoch /\ run[t.chunk] # None
  /\ FenceReservation => seq[t.chunk] = t.last

\* What others have reserved: these lines are checked anew.
Others(t) == Sum(reserved, Chunks) - Size(t.had)

\* The sets of lines that are allowed; and those that fail, since what is spent leaves no room for them.
Allowed(t, others, used) ==
  IF ~HasLimit THEN {t.lines}
  ELSE {s \in SUBSET t.lines :
          Size(s) = Least(Max(Caps[cap] - used - others - Size(t.flying), 0), Size(t.lines))}
Failed(t, used) == IF HasLimit /\ used + 1 > Caps[cap] THEN t.lines ELSE {}

Effect(t, allowed, failed, on) ==
  [next |-> t.next, lines |-> t.lines \union t.flying, reserved |-> IF HasLimit THEN allowed \union t.flying ELSE {},
   allowed |-> allowed, failed |-> failed, day |-> IF HasLimit THEN on ELSE 0]

Write(t, e) ==
  /\ reserved' = [reserved EXCEPT ![t.chunk] = @ - Size(t.had) + Size(e.reserved)]
  /\ seq' = [seq EXCEPT ![t.chunk] = t.next]

\* Only which lines are reserved is kept of a transaction without an answer; its lines wait. A line in flight may have ended
\* meanwhile: its reservation is kept until the lease ends.
Reserved(r, e) ==
  LET ended == {l \in DOMAIN r.line : r.line[l] \in {"finished", "committed"}} IN
  [r EXCEPT !.reserved = (@ \ (e.lines \ ended)) \union (e.reserved \ ended), !.kept = @ + Size(e.reserved \intersect ended),
            !.last = e.next, !.unclear = {},
            !.charge = [l \in DOMAIN @ |-> IF l \in e.reserved \ ended THEN e.day ELSE @[l]]]

Forgiven(r) == IF ForgiveCommitted THEN r.committed ELSE r.excess

Begin(c) ==
  /\ run[c] # None /\ judging[c] = None
  /\ LockLimit => \A other \in Chunks : judging[other] = None
  /\ \E t \in MayAsk(c) :
       /\ MayReserve(t)
       /\ judging' = [judging EXCEPT ![c] =
            [t |-> t, on |-> day, others |-> Others(t), spent |-> spent[day], forgive |-> Forgiven(run[c]), cap |-> cap]]
       /\ run' = [run EXCEPT ![c] = Begun(@, t)]
  /\ UNCHANGED <<cap, day, spent, reserved, epoch, seq, settled, late, early, count>>

End(c) ==
  LET j == judging[c]
      t == j.t
      others == IF ReservedFirst THEN j.others ELSE Others(t)
      used == IF ReservedFirst THEN spent[j.on] ELSE j.spent
  IN
  /\ j # None
  /\ \E allowed \in Allowed(t, others, used) :
       LET e == Effect(t, allowed, Failed(t, used), j.on) IN
       /\ Write(t, e)
       /\ \/ /\ run' = [run EXCEPT ![c] =
                  [Reserved(@, e) EXCEPT
                    !.line = [l \in c |-> IF l \in allowed THEN "unsent" ELSE IF l \in e.failed THEN "finished" ELSE @[l]],
                    !.cap = j.cap, !.excess = @ - j.forgive, !.committed = Max(0, @ - j.forgive)]]
             /\ UNCHANGED count
          \/ /\ Happens("lost", LostMax)
             /\ run' = [run EXCEPT ![c].unclear = @ \union {e}]
  /\ judging' = [judging EXCEPT ![c] = None]
  /\ UNCHANGED <<cap, day, spent, epoch, settled, late, early>>

BeginLate(c) ==
  /\ run[c] # None /\ judging[c] = None
  /\ Happens("late", LateMax)
  /\ \E t \in MayAsk(c) : late' = late \union {t} /\ run' = [run EXCEPT ![c] = Begun(@, t)]
  /\ UNCHANGED <<cap, day, spent, reserved, epoch, seq, settled, judging, early>>

TakeEffect ==
  \E t \in late :
    LET c == t.chunk
        isKnown == run[c] # None /\ epoch[c] = t.epoch
    IN
    /\ judging[c] = None
    /\ LockLimit => \A other \in Chunks : judging[other] = None
    /\ late' = late \ {t}
    /\ IF MayReserve(t)
       THEN \E allowed \in Allowed(t, Others(t), spent[day]) :
              LET e == Effect(t, allowed, Failed(t, spent[day]), day) IN
              /\ Write(t, e)
              /\ run' = IF isKnown THEN [run EXCEPT ![c].unclear = @ \union {e}] ELSE run
       ELSE UNCHANGED <<reserved, seq, run>>
    /\ UNCHANGED <<cap, day, spent, epoch, settled, judging, early, count>>

\* A transaction finds that another one of its worker took effect since the last that is known to have.
Refused(c) ==
  LET r == run[c] IN
  /\ r # None /\ judging[c] = None
  /\ FenceReservation /\ seq[c] # r.last
  /\ \E e \in r.unclear : e.next = seq[c]
       /\ run' = [run EXCEPT ![c] = IF KnowEffective THEN Reserved(r, e) ELSE [r EXCEPT !.last = e.next, !.unclear = {}]]
  /\ UNCHANGED <<cap, day, spent, reserved, epoch, seq, settled, judging, late, early, count>>

\* Without a check: the cap is not passed, so what is committed is forgiven; or there is nothing to check.
Compare(c) ==
  LET r == run[c]
      forgives == r.cap = cap /\ ~IsOver /\ Forgiven(r) > 0
      hasNothing == r.cap # cap /\ (~CheckAgain \/ Asked(c, TRUE) = {})
  IN
  /\ r # None /\ judging[c] = None
  /\ forgives \/ hasNothing
  /\ run' = [run EXCEPT ![c].cap = cap, ![c].excess = IF forgives THEN @ - Forgiven(r) ELSE @,
                        ![c].committed = IF forgives THEN Max(0, @ - Forgiven(r)) ELSE @]
  /\ UNCHANGED <<cap, day, spent, reserved, epoch, seq, settled, judging, late, early, count>>

-----------------------------------------------------------------------------
\* The rest of the world

\* The lease is lost, and with it what the worker knows; or the chunk is parked.
Lose(c) ==
  /\ run[c] # None
  /\ IF Of(c, "unfunded") # {} /\ Of(c, "unsent") \union Of(c, "in flight") \union Of(c, "finished") = {} /\ judging[c] = None
     THEN UNCHANGED count ELSE Happens("lose", LoseMax)
  /\ run' = [run EXCEPT ![c] = None]
  /\ judging' = [judging EXCEPT ![c] = None]
  /\ reserved' = IF ReleaseWithLease THEN [reserved EXCEPT ![c] = 0] ELSE reserved
  /\ UNCHANGED <<cap, day, spent, epoch, seq, settled, late, early>>

ChangeCap ==
  /\ cap < Len(Caps)
  /\ LockLimit => \A c \in Chunks : judging[c] = None
  /\ cap' = cap + 1
  /\ early' = [d \in Days |-> spent[d] - Before(d)]
  /\ UNCHANGED <<day, spent, reserved, epoch, seq, settled, run, judging, late, count>>

SetClock ==
  /\ Happens("day", DayMax)
  /\ day' = 3 - day
  /\ UNCHANGED <<cap, spent, reserved, epoch, seq, settled, run, judging, late, early>>

Done ==
  /\ UNION Chunks \subseteq settled /\ \A c \in Chunks : run[c] = None
  /\ UNCHANGED vars

Next ==
  \/ \E c \in Chunks :
       \/ Claim(c) \/ Commit(c) \/ Begin(c) \/ End(c) \/ BeginLate(c) \/ Refused(c) \/ Compare(c) \/ Lose(c)
       \/ \E l \in c : Send(c, l) \/ Finish(c, l)
  \/ TakeEffect \/ ChangeCap \/ SetClock \/ Done

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
\* Invariants

CostMax == CHOOSE cost \in Costs : \A other \in Costs : other <= cost

LegalLines ==
  [][\A c \in Chunks : run[c] # None /\ run'[c] # None =>
       \A l \in c : run'[c].line[l] # run[c].line[l] => <<run[c].line[l], run'[c].line[l]>> \in LineSteps]_run

\* In each window no more is spent than the cap, but for lines that were sent before it took effect, and what the lines in
\* flight of each worker cost beyond their estimates.
CapKept ==
  HasLimit => \A d \in Days :
    spent[d] <= Max(Caps[cap], Before(d)) + early[d] + Size(Chunks) * InFlightMax * (CostMax - 1)

\* The database has what the worker takes for reserved, unless a transaction without an answer is not cleared up yet.
ReservedAsKnown ==
  \A c \in Chunks : run[c] # None /\ seq[c] = run[c].last =>
    reserved[c] = Size(run[c].reserved) + run[c].kept

NothingLeftReserved == \A c \in Chunks : run[c] = None => reserved[c] = 0
NeverNegative == \A c \in Chunks : reserved[c] >= 0

-----------------------------------------------------------------------------
OneCap == <<2>>
AmpleCap == <<3>>
Lowered == <<3, 1>>
Raised == <<1, 2>>
Created == <<Unlimited, 2>>
IsOld(t) == FenceReservation /\ FenceLease /\ (epoch[t.chunk] > t.epoch \/ seq[t.chunk] > t.last)
Relative(t) == [t EXCEPT !.epoch = epoch[t.chunk] - @, !.last = seq[t.chunk] - @, !.next = @ - seq[t.chunk]]
View ==
  <<cap, day, spent, reserved, settled,
    [c \in Chunks |-> IF run[c] = None THEN <<>>
                      ELSE [run[c] EXCEPT !.last = seq[c] - @, !.next = @ - seq[c],
                                          !.unclear = {[e EXCEPT !.next = seq[c] - @] : e \in run[c].unclear}]],
    [c \in Chunks |-> IF judging[c] = None THEN <<>> ELSE [judging[c] EXCEPT !.t = Relative(@)]],
    {Relative(t) : t \in {t \in late : ~IsOld(t)}}, early, count>>
Symmetry == {p \in Permutations(UNION Chunks) : {{p[l] : l \in c} : c \in Chunks} = Chunks}
=============================================================================
