# The part of a Slurm job that is the same for all jobs; `slurm.py` writes the settings above it:
#   run        command of Python on a node, with the container around it
#   arguments  of simfl, without the address of Ray
#   labels     one run of a sweep for each element of an array; empty without an array
#   interface, min_nodes, join_seconds, requeues
set -u
unset RAY_ADDRESS
export RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0 PYTHONUNBUFFERED=1 RAY_AUTH_TOKEN
restarts=${SLURM_RESTART_COUNT:-0}
folder=/tmp/ray-$(id -un)-$SLURM_JOB_ID  # short: paths of sockets have at most 107 characters
driver= head= others= reason= again=

say() { echo "simfl: $*"; }

# A signal stops the driver, which saves a checkpoint; Ray ignores it, because the driver needs its workers until then.
stop() {
  reason=$1
  if [ -n "$driver" ]; then kill -TERM "$driver" 2>/dev/null; fi
}
trap 'stop limit' USR1
trap 'stop ended' TERM INT HUP

finish() {  # EXIT_CODE
  trap '' TERM INT HUP USR1
  if [ -n "$head" ]; then kill -USR2 "$head" 2>/dev/null; fi  # the other nodes follow
  wait
  rm -rf "$folder"
  if [ -n "$again" ]; then
    say "restart $((restarts + 1)) of at most $requeues requested"
    request_restart
  fi
  say "exit code $1"
  exit "$1"
}

request_restart() {  # a controller that is away is asked again for a minute
  local i
  for i in {1..30}; do
    if scontrol requeue "$SLURM_JOB_ID"; then return; fi
    sleep 2
  done
  say "Slurm does not restart this job; continue with the same command and --resume"
}

fail() { say "$*"; finish 1; }

wait_for() {  # PROCESS; its exit code is in `code`
  wait "$1"
  code=$?
  while kill -0 "$1" 2>/dev/null; do  # a signal interrupted the wait
    wait "$1"
    code=$?
  done
}

node() {  # of Ray, with more options; in a process of its own
  exec "${run[@]}" -m simfl.submit.ray_node --interface "$interface" --cpus "${SLURM_CPUS_ON_NODE:-1}" \
    --gpus "${SLURM_GPUS_ON_NODE:-0}" "$@"
}

start_head() {
  node --folder "$folder/head" >> "$folder/ready" 2> "$folder/log" &
  head=$!
  until [ -s "$folder/ready" ]; do
    kill -0 "$head" 2>/dev/null || { cat "$folder/log"; fail "Ray did not start on ${SLURMD_NODENAME:-this node}"; }
    [ -z "$reason" ] || finish 130
    sleep 0.5
  done
  read -r _ address _ < "$folder/ready"
}

# The other nodes join the head. Too few within the time are an error; otherwise missing ones are named.
start_others() {
  export -f node
  export address interface folder run_line="${run[*]@Q}"
  [ -z "${SLURM_CPUS_PER_TASK:-}" ] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
  (
    trap '' TERM HUP INT  # srun would end the step
    exec srun --nodes=$((SLURM_NNODES - 1)) --ntasks=$((SLURM_NNODES - 1)) --ntasks-per-node=1 --no-kill \
      --exclude="$SLURMD_NODENAME" --kill-on-bad-exit=0 bash -c \
      'eval "run=($run_line)"; node --join "$address" --folder "$folder-$SLURM_NODEID-$SLURMD_NODENAME"'
  ) >> "$folder/ready" 2> "$folder/others" < /dev/null &
  others=$!
  local end=$((SECONDS + join_seconds))
  until [ "$(joined | wc -l)" -eq "$SLURM_NNODES" ] || [ "$SECONDS" -ge "$end" ] || ! kill -0 "$others" 2>/dev/null; do
    [ -z "$reason" ] || finish 130
    sleep 0.5
  done
  local missing
  missing=$(comm -13 <(joined) <(scontrol show hostnames "$SLURM_JOB_NODELIST" | sort))
  [ -n "$missing" ] || return
  cat "$folder/others"
  missing="$(wc -l <<< "$missing") of $SLURM_NNODES nodes did not join: $(paste -sd ' ' <<< "$missing")"
  [ "$(joined | wc -l)" -ge "$min_nodes" ] || fail "$missing; --min-nodes allows fewer nodes"
  say "$missing; the run uses the other $(joined | wc -l)"
}

joined() { cut -d' ' -f3 "$folder/ready" | sort; }

# The time limit comes, or another job needs the nodes: continue in a restart of this job, unless Slurm restarts it.
decide_again() {
  [ "$reason" = limit ] || is_preempted || return
  if [ "$restarts" -lt "$requeues" ]; then
    again=yes
  else
    say "not restarted again, after $restarts of at most $requeues restarts; continue with the same command and --resume"
  fi
}

# Return whether this job was asked to make room and still runs; one that Slurm has ended is restarted by Slurm.
is_preempted() {
  local job
  job=$(scontrol show job --oneliner "$SLURM_JOB_ID" 2>/dev/null)
  [[ $job =~ JobState=RUNNING.*PreemptTime=[0-9] ]]
}

mkdir -p -m 700 "$folder" || fail "$folder: cannot be created"
if [ "$restarts" -gt 0 ]; then
  say "restart $restarts of at most $requeues"
  arguments+=(--resume)
fi
if [ "${#labels[@]}" -gt 0 ]; then
  arguments+=(--only "${labels[$SLURM_ARRAY_TASK_ID]}" --backend inline)
else
  RAY_AUTH_TOKEN=$("${run[@]}" -c 'import secrets; print(secrets.token_hex(32))') || fail "no Python on this node"
  start_head
  if [ "$SLURM_NNODES" -gt 1 ]; then start_others; fi
  arguments+=(--address "$address")
fi
[ -z "$reason" ] || finish 130
"${run[@]}" -m simfl "${arguments[@]}" &
driver=$!
[ -z "$reason" ] || kill -TERM "$driver"
wait_for "$driver"
case $code in 130 | 3 | 143) decide_again ;; esac  # interrupted, or ended before it could handle the signal
finish "$code"
