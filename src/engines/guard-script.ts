// The shell script that runs an engine. The worker has the other end of fd 3: a line on it, or its end (however the
// worker ended), stops the engine. At the end the whole process group is killed, and on Linux whatever else carries
// the engine's tag in its environment, for engines whose children leave the group. The engine's exit status is
// reported on fd 3. The engine's folder is removed with it. Arguments: tag, tenths of a second between SIGTERM and
// SIGKILL, folder (may be empty), command.

export const GUARD_SCRIPT = String.raw`
tag=$1 tenths=$2 folder=$3
shift 3

kill_rest() {
  [ -z "$folder" ] || rm -rf -- "$folder"
  for path in $(grep -lsz "^OFFPEAK_ENGINE=$tag\$" /proc/[0-9]*/environ 2>/dev/null); do
    kill -KILL "$(echo "$path" | cut -d/ -f3)" 2>/dev/null
  done
  kill -KILL -$$
}

# Caught, not ignored: an ignored signal would stay ignored in the engine.
trap : HUP INT TERM
OFFPEAK_ENGINE=$tag "$@" </dev/null 3<&- &
engine=$!
(
  trap '' HUP INT TERM
  read -r _ <&3
  kill -TERM -$$
  while [ "$tenths" -gt 0 ] && kill -0 "$engine" 2>/dev/null; do
    sleep 0.1
    tenths=$((tenths - 1))
  done
  kill_rest
) &

# A caught signal ends wait early.
while :; do
  wait "$engine"
  status=$?
  kill -0 "$engine" 2>/dev/null || break
done
echo "$status" >&3
kill_rest
`
