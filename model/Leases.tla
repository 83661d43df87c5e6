------------------------------- MODULE Leases -------------------------------
\* Lease, epoch and commit: workers claim chunks, record finished lines in journals, and seal a chunk when all of its
\* lines are finished.
\*
\* Each action that changes a row is one transaction, and its row steps are those of Steps. A worker's transaction ends
\* in one of three ways: it is answered; it takes effect and its answer is lost; or the worker gives up on it, and it takes
\* effect later or never. A commit of several chunks is a sequence of commits here, which is more than the code allows.
\*
\* A session expires at any time: that covers every clock, skewed or suspended. The database alone decides it. A worker
\* whose session has expired goes on as if it had it until a transaction tells.
EXTENDS Integers, TLC, Steps

CONSTANTS
  Workers, Lines, None,
  Chunks,      \* A chunk is the set of its lines.
  CrashMax,    \* How many processes crash.
  ExpiryMax,   \* How many sessions of running processes expire.
  LostMax,     \* How many transactions take effect without an answer.
  LateMax,     \* How many transactions take effect later than their worker waits.
  ParkMax,     \* How often a chunk is paused, or a worker parks, rejects or releases it.
  DamageMax,   \* How many journals are damaged.
  FaultsMax,   \* How many of all of these, but for parking.
  \* Guards; each is taken out to see an invariant fail.
  FenceEpoch,        \* A commit names the epoch of its lease.
  FenceCommit,       \* A commit names the number of the last one.
  KnowRepeated,      \* A commit that finds its own number taken has taken effect before.
  RaiseEpoch,        \* A claim raises the epoch.
  LockSession,       \* A claim belongs to a live session.
  RequeueExpired,    \* The leases of a session end with it.
  ReleaseStrays,     \* A worker releases leases that it does not know of.
  FenceStrays,       \* ... of the epoch that it saw.
  ReadJournals,      \* A worker that opens a chunk reads what is finished of it.
  CommitBeforePark,  \* A worker commits finished lines before it parks their chunk.
  SealFinished,      \* A worker seals a chunk when all of its lines are finished.
  FenceReversal      \* A reversal names the epoch and the number of the last commit, as a commit does.

VARIABLES
  rows,      \* By chunk: state, epoch, number of the last commit (seq), and the session that leases it.
  parts,     \* By chunk: its journals, each the set of its lines; or the result of its seal.
  damaged,   \* Journals that cannot be read.
  billed,    \* By line: how often it is billed.
  live,      \* The sessions that the database knows.
  late,      \* Transactions that their workers have given up on.
  session,   \* By worker: the session that it believes to have; None while no process runs.
  open,      \* By worker and chunk: what it knows of a chunk that it has open.
  suspect,   \* By worker: whether a claim of its process was left without an answer.
  acked,     \* Lines whose commit was acknowledged.
  sent,      \* Lines that a worker with a live session has sent; without those that a fault took away.
  again,     \* Whether one of these was sent again.
  count      \* How many faults have happened.

db == <<rows, parts, damaged, billed, live>>
memory == <<session, open, suspect>>
vars == <<db, late, memory, acked, sent, again, count>>

NoSession == <<None, 0>>

Faults == count.crash + count.expiry + count.lost + count.late + count.damage
Happens(fault, max) ==
  /\ count[fault] < max /\ (fault # "park" => Faults < FaultsMax)
  /\ count' = [count EXCEPT ![fault] = @ + 1]
Recorded(c) == UNION parts[c]

Init ==
  /\ rows = [c \in Chunks |-> [state |-> "ready", epoch |-> 0, seq |-> 0, session |-> NoSession]]
  /\ parts = [c \in Chunks |-> {}]
  /\ damaged = {}
  /\ billed = [l \in Lines |-> 0]
  /\ live = {<<w, 1>> : w \in Workers}
  /\ late = {}
  /\ session = [w \in Workers |-> <<w, 1>>]
  /\ open = [w \in Workers |-> [c \in Chunks |-> None]]
  /\ suspect = [w \in Workers |-> FALSE]
  /\ acked = {}
  /\ sent = {}
  /\ again = FALSE
  /\ count = [crash |-> 0, expiry |-> 0, lost |-> 0, late |-> 0, park |-> 0, damage |-> 0]

-----------------------------------------------------------------------------
\* Row steps

Step(name, c) == CHOOSE s \in ChunkSteps : s.name = name /\ s.from = rows[c].state
CanStep(name, c) == \E s \in ChunkSteps : s.name = name /\ s.from = rows[c].state
Stepped(name, c, s) ==
  [rows EXCEPT ![c] = [state |-> Step(name, c).to,
                       epoch |-> @.epoch + (IF RaiseEpoch THEN Step(name, c).epoch ELSE 0),
                       seq |-> @.seq + Step(name, c).seq,
                       session |-> IF Step(name, c).to = "leased" THEN s ELSE NoSession]]

\* Requeues some chunks at once.
Requeued(chunks) ==
  [c \in Chunks |-> IF c \in chunks THEN [rows[c] EXCEPT !.state = "ready", !.session = NoSession] ELSE rows[c]]

-----------------------------------------------------------------------------
\* Claims

\* A chunk of a batch that ends is claimed although it is parked.
ClaimStep(c) == IF rows[c].state = "parked" THEN "close" ELSE "claim"
Claimable(s, c) == (LockSession => s \in live) /\ CanStep(ClaimStep(c), c)

MayClaim(w, c) == open[w][c] = None /\ rows[c].state # "sealed"

\* The worker that opens a chunk reads what is finished of it. A damaged journal is reversed first.
Opened(w, c, r) ==
  [open EXCEPT ![w][c] = [epoch |-> r.epoch, seq |-> r.seq, fresh |-> {}, commit |-> None,
                          reverse |-> parts[c] \intersect damaged,
                          done |-> IF ReadJournals THEN UNION (parts[c] \ damaged) ELSE {}]]

Claim(w, c) ==
  /\ MayClaim(w, c) /\ Claimable(session[w], c)
  /\ rows' = Stepped(ClaimStep(c), c, session[w])
  /\ \/ open' = Opened(w, c, rows'[c]) /\ UNCHANGED <<suspect, count>>
     \/ Happens("lost", LostMax) /\ suspect' = [suspect EXCEPT ![w] = TRUE] /\ UNCHANGED open
  /\ UNCHANGED <<parts, damaged, billed, live, late, session, acked, sent, again>>

ClaimLate(w, c) ==
  /\ MayClaim(w, c)
  /\ Happens("late", LateMax)
  /\ late' = late \union {[step |-> "claim", chunk |-> c, session |-> session[w]]}
  /\ suspect' = [suspect EXCEPT ![w] = TRUE]
  /\ UNCHANGED <<db, session, open, acked, sent, again>>

\* Leases of its session that the worker does not know of, as (chunk, epoch).
Strays(w) == {<<c, rows[c].epoch>> : c \in {c \in Chunks : rows[c].state = "leased" /\ rows[c].session = session[w]
                                                           /\ open[w][c] = None}}
Release(strays) ==
  {c \in Chunks : rows[c].state = "leased" /\ \E e \in {s[2] : s \in {s \in strays : s[1] = c}} :
                                                FenceStrays => rows[c].epoch = e}

ReleaseStrayLeases(w) ==
  /\ ReleaseStrays
  /\ suspect[w] /\ session[w] \in live /\ Strays(w) # {}
  /\ \/ rows' = Requeued(Release(Strays(w))) /\ UNCHANGED <<late, count>>
     \/ /\ Happens("late", LateMax)
        /\ late' = late \union {[step |-> "requeue", strays |-> Strays(w)]}
        /\ UNCHANGED rows
  /\ UNCHANGED <<parts, damaged, billed, live, memory, acked, sent, again>>

-----------------------------------------------------------------------------
\* Lines and commits

\* The line is sent, and its answer arrives. A worker whose session has expired finishes lines, too; but nobody can tell
\* whether it finished them before.
Finish(w, c, l) ==
  LET o == open[w][c] IN
  /\ o # None /\ session[w] \in live
  /\ IF o.commit = None THEN o.reverse = {} ELSE o.commit.step = "journal"
  /\ l \notin o.done \union o.fresh \union (IF o.commit = None THEN {} ELSE o.commit.lines)
  /\ open' = [open EXCEPT ![w][c].fresh = @ \union {l}]
  /\ sent' = sent \union {l}
  /\ again' = (again \/ l \in sent)
  /\ UNCHANGED <<db, late, session, suspect, acked, count>>

\* What a worker may commit of an open chunk: what it has begun, or else what is due.
Commits(c, o) ==
  LET commit(step) == [step |-> step, chunk |-> c, epoch |-> o.epoch, seq |-> o.seq, lines |-> o.fresh,
                       content |-> o.done \union o.fresh, reverse |-> o.reverse]
      isWhole == o.done \union o.fresh = c \/ (~SealFinished /\ o.fresh # {})
      isReadable == parts[c] \intersect damaged = {}
      mayPark == (CommitBeforePark => o.fresh = {}) /\ (count.park < ParkMax \/ (isWhole /\ ~isReadable))
      steps == IF o.reverse # {} THEN {"reverse"}
               ELSE (IF o.fresh # {} /\ ~(isWhole /\ isReadable) THEN {"journal"} ELSE {})
                    \union (IF isWhole /\ isReadable THEN {"seal"} ELSE {})
                    \union (IF mayPark /\ ~(isWhole /\ isReadable) THEN {"park", "reject"} ELSE {})
  IN IF o.commit = None THEN {commit(step) : step \in steps} ELSE {o.commit}

Fenced(t) ==
  LET r == rows[t.chunk]
      isFenced == t.step # "reverse" \/ FenceReversal
      isCurrent == /\ r.state = "leased"
                   /\ FenceEpoch /\ isFenced => r.epoch = t.epoch
                   /\ FenceCommit /\ isFenced => r.seq = t.seq
  IN IF isCurrent THEN "accepted"
     ELSE IF r.epoch = t.epoch /\ r.seq = t.seq + 1 THEN "repeated" ELSE "lost"

\* What a commit does to the database.
Commit(t) ==
  LET c == t.chunk
      gone == UNION t.reverse
  IN IF Fenced(t) = "accepted"
     THEN /\ rows' = Stepped(IF t.step = "reverse" THEN "journal" ELSE t.step, c, rows[c].session)
          /\ parts' = [parts EXCEPT ![c] = CASE t.step = "journal" -> @ \union {t.lines}
                                             [] t.step = "seal" -> {t.content}
                                             [] t.step = "reverse" -> @ \ t.reverse
                                             [] OTHER -> @]
          /\ billed' = [l \in Lines |-> billed[l] + (IF t.step \in {"journal", "seal"} /\ l \in t.lines THEN 1 ELSE 0)
                                                  - (IF t.step = "reverse" /\ l \in gone THEN 1 ELSE 0)]
          /\ damaged' = IF t.step = "reverse" THEN damaged \ t.reverse ELSE damaged
     ELSE UNCHANGED <<rows, parts, damaged, billed>>

\* What a worker knows after the answer.
After(w, c, t) ==
  LET o == open[w][c]
      known == Fenced(t) = "accepted" \/ (KnowRepeated /\ Fenced(t) = "repeated")
  IN IF known /\ t.step \in {"journal", "reverse"}
     THEN [o EXCEPT !.done = @ \union t.lines, !.fresh = @ \ t.lines, !.seq = @ + 1, !.commit = None, !.reverse = {}]
     ELSE None

Acked(t) ==
  CASE Fenced(t) # "lost" /\ t.step \in {"journal", "seal"} -> acked \union t.lines
    [] Fenced(t) = "accepted" /\ t.step = "reverse" -> acked \ UNION t.reverse
    [] OTHER -> acked

CommitAnswered(w, c) ==
  /\ open[w][c] # None
  /\ \E t \in Commits(c, open[w][c]) :
       /\ Commit(t)
       /\ open' = [open EXCEPT ![w][c] = After(w, c, t)]
       /\ acked' = Acked(t)
       /\ count' = IF t.step \in {"park", "reject"} /\ open[w][c].commit = None THEN [count EXCEPT !.park = @ + 1] ELSE count
  /\ UNCHANGED <<live, late, session, suspect, sent, again>>

\* The worker repeats a commit without an answer until it gets one.
Begun(w, c, t) == [open EXCEPT ![w][c].commit = t, ![w][c].fresh = @ \ t.lines]

CommitAnswerLost(w, c) ==
  /\ open[w][c] # None
  /\ Happens("lost", LostMax)
  /\ \E t \in Commits(c, open[w][c]) : Commit(t) /\ open' = Begun(w, c, t) /\ acked' = acked \ UNION t.reverse
  /\ UNCHANGED <<live, late, session, suspect, sent, again>>

CommitLate(w, c) ==
  /\ open[w][c] # None
  /\ Happens("late", LateMax)
  /\ \E t \in Commits(c, open[w][c]) : late' = late \union {t} /\ open' = Begun(w, c, t)
  /\ UNCHANGED <<db, session, suspect, acked, sent, again>>

\* The worker ends the lease without a commit, for example because the batch goes on after all.
ReleaseLease(w, c) ==
  LET o == open[w][c] IN
  /\ o # None /\ o.commit = None /\ o.fresh = {}
  /\ Happens("park", ParkMax)
  /\ rows' = IF rows[c].state = "leased" /\ rows[c].epoch = o.epoch THEN Requeued({c}) ELSE rows
  /\ open' = [open EXCEPT ![w][c] = None]
  /\ UNCHANGED <<parts, damaged, billed, live, late, session, suspect, acked, sent, again>>

-----------------------------------------------------------------------------
\* Faults and the rest of the world

TakeEffect ==
  \E t \in late :
    /\ late' = late \ {t}
    /\ CASE t.step = "claim" -> /\ rows' = IF Claimable(t.session, t.chunk) THEN Stepped(ClaimStep(t.chunk), t.chunk, t.session) ELSE rows
                                /\ UNCHANGED <<parts, damaged, billed, acked>>
         [] t.step = "requeue" -> rows' = Requeued(Release(t.strays)) /\ UNCHANGED <<parts, damaged, billed, acked>>
         [] OTHER -> Commit(t) /\ acked' = acked \ UNION t.reverse
    /\ UNCHANGED <<live, memory, sent, again, count>>

\* Lines that a worker has in its memory and nowhere else.
Unrecorded(w) ==
  UNION {LET o == open[w][c] IN
           IF o = None THEN {} ELSE (o.fresh \union (IF o.commit = None THEN {} ELSE o.commit.lines)) \ Recorded(c) : c \in Chunks}

Expire(s) ==
  /\ s \in live
  /\ IF \E w \in Workers : session[w] = s THEN Happens("expiry", ExpiryMax) ELSE UNCHANGED count
  /\ live' = live \ {s}
  /\ rows' = IF RequeueExpired THEN Requeued({c \in Chunks : rows[c].state = "leased" /\ rows[c].session = s}) ELSE rows
  /\ sent' = sent \ UNION {Unrecorded(w) : w \in {w \in Workers : session[w] = s}}
  /\ UNCHANGED <<parts, damaged, billed, late, memory, acked, again>>

NewSession(w) ==
  LET s == <<w, session[w][2] + 1>> IN
  /\ live' = live \union {s}
  /\ session' = [session EXCEPT ![w] = s]
  /\ open' = [open EXCEPT ![w] = [c \in Chunks |-> None]]

\* A heartbeat finds the session expired.
LoseSession(w) ==
  /\ session[w] \notin live
  /\ NewSession(w)
  /\ UNCHANGED <<rows, parts, damaged, billed, late, suspect, acked, sent, again, count>>

\* The process crashes, and another one starts.
Crash(w) ==
  /\ Happens("crash", CrashMax)
  /\ NewSession(w)
  /\ suspect' = [suspect EXCEPT ![w] = FALSE]
  /\ sent' = sent \ Unrecorded(w)
  /\ UNCHANGED <<rows, parts, damaged, billed, late, acked, again>>

Wake(c) ==
  /\ CanStep("wake", c)
  /\ rows' = Stepped("wake", c, NoSession)
  /\ UNCHANGED <<parts, damaged, billed, live, late, memory, acked, sent, again, count>>

Pause(c) ==
  /\ CanStep("pause", c) /\ Happens("park", ParkMax)
  /\ rows' = Stepped("pause", c, NoSession)
  /\ UNCHANGED <<parts, damaged, billed, live, late, memory, acked, sent, again>>

Damage ==
  /\ Happens("damage", DamageMax)
  /\ \E c \in Chunks : /\ rows[c].state # "sealed"
                       /\ \E part \in parts[c] : damaged' = damaged \union {part} /\ sent' = sent \ part
  /\ UNCHANGED <<rows, parts, billed, live, late, memory, acked, again>>

Done ==
  /\ \A c \in Chunks : rows[c].state = "sealed"
  /\ UNCHANGED vars

Next ==
  \/ \E w \in Workers :
       \/ \E c \in Chunks :
            \/ Claim(w, c) \/ ClaimLate(w, c)
            \/ \E l \in c : Finish(w, c, l)
            \/ CommitAnswered(w, c) \/ CommitAnswerLost(w, c) \/ CommitLate(w, c)
            \/ ReleaseLease(w, c)
       \/ ReleaseStrayLeases(w)
       \/ LoseSession(w) \/ Crash(w)
  \/ \E s \in live : Expire(s)
  \/ \E c \in Chunks : Wake(c) \/ Pause(c)
  \/ TakeEffect \/ Damage \/ Done

Spec == Init /\ [][Next]_vars

TellSteps == \A c \in Chunks : rows'[c] # rows[c] => Tell(rows[c].state, rows'[c].state)

-----------------------------------------------------------------------------
\* Invariants

BilledOnce == \A l \in Lines : billed[l] <= 1
BilledAsRecorded == \A c \in Chunks : \A l \in c : (billed[l] = 1) = (l \in Recorded(c))
NeverLost == acked \subseteq UNION {Recorded(c) : c \in Chunks}
SealedWhole == \A c \in Chunks : rows[c].state = "sealed" => parts[c] = {c}
LeasesHaveSessions == \A c \in Chunks : rows[c].state = "leased" => rows[c].session \in live
\* A worker that knows of a lease has it while its session lives.
KnownLeasesHold ==
  \A w \in Workers, c \in Chunks :
    open[w][c] # None /\ session[w] \in live /\ (open[w][c].commit = None \/ open[w][c].commit.step = "journal")
      => rows[c].state = "leased" /\ rows[c].session = session[w] /\ rows[c].epoch = open[w][c].epoch
\* A row changes as Steps says, or is requeued with others of its session.
LegalSteps ==
  [][\A c \in Chunks : rows'[c] # rows[c] =>
       \E s \in ChunkSteps :
         /\ s.from = rows[c].state /\ s.to = rows'[c].state
         /\ rows'[c].epoch = rows[c].epoch + s.epoch /\ rows'[c].seq = rows[c].seq + s.seq]_rows
\* No line is sent twice without a crash, an expired session or a damaged journal.
SentOnce == ~again

\* States are the same if they differ only in what can make no difference: by how much epochs and numbers have risen, late
\* transactions that can have no effect any more, sessions that have nothing, how lines are spread over undamaged journals.
Age(c, x) == IF rows[c].epoch = x.epoch THEN <<0, rows[c].seq - x.seq>> ELSE <<1, 0>>
Relative(t) ==
  CASE t.step = "claim" -> t
    [] t.step = "requeue" -> [strays |-> {<<s[1], rows[s[1]].epoch - s[2]>> : s \in t.strays}]
    [] OTHER -> [step |-> t.step, chunk |-> t.chunk, age |-> Age(t.chunk, t), lines |-> t.lines, content |-> t.content,
                 reverse |-> t.reverse]
IsOver(t) ==
  CASE t.step = "claim" -> LockSession /\ t.session \notin live
    [] t.step = "requeue" -> FenceStrays /\ \A s \in t.strays : rows[s[1]].epoch > s[2] \/ rows[s[1]].state = "sealed"
    [] OTHER -> \/ FenceEpoch /\ FenceReversal /\ rows[t.chunk].epoch > t.epoch
                \/ FenceCommit /\ FenceReversal /\ rows[t.chunk].seq > t.seq
                \/ rows[t.chunk].state = "sealed"
LateNow == {t \in late : ~IsOver(t)}
HasAnything(s) ==
  \/ \E w \in Workers : session[w] = s
  \/ \E c \in Chunks : rows[c].session = s
  \/ \E t \in late : t.step = "claim" /\ t.session = s
View ==
  << [c \in Chunks |-> <<rows[c].state, rows[c].session,
                         IF damaged # {} \/ count.damage < DamageMax THEN parts[c] ELSE {Recorded(c)}>>],
     damaged, billed, {s \in live : HasAnything(s)}, {Relative(t) : t \in LateNow}, session,
     [w \in Workers |-> [c \in Chunks |->
       LET o == open[w][c] IN
         IF o = None THEN <<>>
         ELSE <<Age(c, o), o.done, o.fresh, o.reverse, IF o.commit = None THEN <<>> ELSE <<o.commit.step, o.commit.lines>> >>]],
     suspect, acked, sent, again, count >>

Symmetry ==
  Permutations(Workers)
    \union {p \in Permutations(Lines) : {{p[l] : l \in c} : c \in Chunks} = Chunks}
=============================================================================
