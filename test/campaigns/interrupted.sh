#!/usr/bin/env bash
# Commands that are killed, or one of whose calls to the system fails, at random: the old file or the new one is there, no other,
# and in the end no temporary file.
# usage: interrupted.sh kills|calls COUNT SEED KVCODEC DATA [FAILING]     exit 1 and a line per fault
#        interrupted.sh steps|child|left [COUNT SEED] KVCODEC DATA FAILING
#   DATA      what test/cli/make_data.sh made
#   FAILING   the library of failing_calls.c, for calls, steps, left and child
# steps: a command that adds to a file in place is killed before each call that it makes, one run for each; the next run goes on.
# left: the same for one that replaces a file with a journal that a reader made stay, with that reader (where there is Python) and without.
# With a COUNT, so many kills of each such command, with that reader and without, before calls at random.
# child: each allocation of the process that goes through a file first fails once; whoever asked for the file goes on.
set -uo pipefail
what=$1
shift
count=0 seed=0
[[ $1 != [0-9]* ]] || { count=$1 seed=$2 && shift 2; }
kvcodec=$1 data=$2 failing=${3:-}
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cd "$place"
export SOURCE_DATE_EPOCH=1700000000 LC_ALL=C OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
RANDOM=$seed

if [[ $what == child ]]; then
  for ((at = 1;; ++at)); do
    rm -f reached
    cp "$data/part-1.h5" in.h5
    said=$(timeout 60 env FAIL_CALL=new FAIL_CHILD=1 FAIL_AT=$at FAIL_SAID="$PWD/reached" LD_PRELOAD="$failing" \
      "$kvcodec" encode in.h5 --codec none -o out.h5 --overwrite --quiet --json 2>&1)
    status=$?
    [[ -e reached ]] || break
    [[ $status == 0 && $(wc -l <<<"$said") -gt 1 && $said != *"out of memory"* ]] && ! compgen -G '.out.h5.*' >/dev/null && continue
    echo "allocation $at of the child: status $status, ${said:0:200}" && exit 1
  done
  echo "$((at - 1)) allocations of the child failed, and the command went on"
  ((at > 3))
  exit
fi

# Each writes out.h5 and reads existing data only to add to it.
names=(encode append train_dict pack dump_kv dump_more cat rm compact resume)
command_of() {
  case $1 in
    encode) command=("$kvcodec" encode "$data/kv.h5" --codec kivi -o out.h5 --overwrite) ;;
    append) command=("$kvcodec" encode "$data/part-2.h5" --append out.h5 --continue) ;;
    cat) command=("$kvcodec" cat "$data/kv.h5" "$data/kv.h5" -o out.h5 --overwrite) ;;
    resume) command=("$kvcodec" encode "$data/kv.h5" --codec kivi --resume --piece 64K -o out.h5 --overwrite) ;;
    rm) command=("$kvcodec" rm out.h5 --documents 0 --in-place) ;;
    compact) command=("$kvcodec" compact out.h5) ;;
    train_dict) command=("$kvcodec" train-dict "$data/kv.h5" --atoms 96 --sparsity 4 --epochs 1 -o out.h5 --overwrite) ;;
    pack) command=("$kvcodec" pack-indices "$data/sparse.h5" -o out.h5 --overwrite) ;;
    dump_more) command=("$kvcodec" dump-kv --model "$source/data/demo-model" --text "$place/more.txt" --append out.h5) ;;
    left_compact) command=("$kvcodec" compact out.h5) ;;
    left_rm) command=("$kvcodec" rm out.h5 --documents 0 --in-place) ;;
    left_pack) command=("$kvcodec" pack-indices out.h5 -o out.h5 --overwrite) ;;
    left_encode) command=("$kvcodec" encode "$data/kv.h5" --codec kivi -o out.h5 --overwrite) ;;
    dump_kv) command=("$kvcodec" dump-kv --model "$source/data/demo-model" --text "$source/LICENSE" --max-tokens 16 -o out.h5 --overwrite) ;;
  esac
}

echo "no file of ours" >old-any
"$kvcodec" encode "$data/part-1.h5" --codec kivi -o old-append --quiet >/dev/null || exit
echo "One more text." >more.txt
"$kvcodec" dump-kv --model "$source/data/demo-model" --text "$source/LICENSE" --max-tokens 16 -o old-dump_more --quiet >/dev/null || exit
cp "$data/kv.h5" old-rm
cp old-append old-compact
"$kvcodec" encode "$data/part-2.h5" --append old-compact --continue --quiet >/dev/null || exit
for name in "${names[@]}"; do
  [[ -e old-$name ]] || cp old-any "old-$name"
  cp "old-$name" out.h5
  command_of "$name"
  begin=${EPOCHREALTIME/./}
  "${command[@]}" >/dev/null 2>said || { echo "$name: $(cat said)" && exit 1; }
  declare "took_$name=$((${EPOCHREALTIME/./} - begin))"
  cp out.h5 "new-$name"
  cmp -s "old-$name" "new-$name" && echo "$name changes nothing" && exit 1
done
# The content of files that are changed in place, before and after.
in_place() { [[ $1 == append || $1 == dump_more ]]; }
content_of() { # content_of NAME: writes decoded
  case $1 in
    left_pack) "$kvcodec" decode out.h5 --book "$data/dict.h5" -o decoded --overwrite --quiet ;;
    append | left_*) "$kvcodec" decode out.h5 -o decoded --overwrite --quiet ;;
    dump_more) "$kvcodec" cat out.h5 -o decoded --overwrite --quiet ;;
  esac >/dev/null
}
for name in append dump_more; do
  for there in old new; do
    cp "$there-$name" out.h5
    content_of $name || exit
    mv decoded "$there-$name-decoded"
  done
done

check() { "$kvcodec" check out.h5 "$data/dict.h5" >/dev/null 2>&1; }  # codes of left_pack need the dictionary
faults=0 old=0 new=0 reached=0 ended=0
fault() { echo "$1: $2" && faults=$((faults + 1)); }
# Fails unless the output has the content of the new one. After a failed and repeated allocation, HDF5 leaves other bytes in the
# gaps of its own structures.
reads_as_new() {
  [[ $(stat -c %s out.h5) == "$(stat -c %s "new-$1")" ]] && check || return
  cp "new-$1" as-new.h5
  cmp -s <("$kvcodec" info out.h5 --json | grep -v '"file"') <("$kvcodec" info as-new.h5 --json | grep -v '"file"')
}
# Sets $content to old, new or neither, as a file that is changed in place has it: bytes after its end do not count.
look_into() { # look_into NAME
  content=neither
  check && content_of "$1" 2>/dev/null || return 0
  local which
  for which in old new; do cmp -s decoded "$which-$1-decoded" && content=$which; done
  return 0
}
holds() { look_into "$1" && [[ $content == "$2" ]]; } # holds NAME old|new
# The existing file of that command.
look() {
  if in_place "$1"; then
    look_into "$1"
    there=$content
    case $there in
      new) new=$((new + 1)) ;;
      old) old=$((old + 1)) ;;
      *) fault "$2" "neither the documents of before nor those of after are there" ;;
    esac
    cp out.h5 seen.h5
    rm -f seen.h5.journal && [[ -e out.h5.journal ]] && cp out.h5.journal seen.h5.journal
    "${command[@]}" >/dev/null 2>said-next || fault "$2" "the next run fails: $(cat said-next)"
    holds "$1" new && [[ ! -e out.h5.journal ]] || fault "$2" "the next run does not complete it"
  elif cmp -s out.h5 "new-$1" || reads_as_new "$1"; then new=$((new + 1)) there=new
  elif cmp -s out.h5 "old-$1"; then old=$((old + 1)) there=old
  else there=neither && fault "$2" "neither the old file nor the new one is there"
  fi
  if [[ $1 == resume ]]; then
    cp out.h5 seen.h5
    "${command[@]}" >/dev/null 2>said-next || fault "$2" "the next run fails: $(cat said-next)"
    { cmp -s out.h5 new-resume || reads_as_new resume; } && [[ ! -e out.h5.pieces ]] || fault "$2" "the next run does not complete it"
    cp seen.h5 out.h5
  fi
}
left() { compgen -G '.out.h5.*' >/dev/null; }

kill_one() {
  local name=$1 took=took_$1 process
  "${command[@]}" >/dev/null 2>&1 &
  process=$!
  sleep "0.$(printf '%06d' $(((RANDOM * 32768 + RANDOM) % (${!took} + ${!took} / 8) % 1000000)))"
  kill -KILL $process 2>/dev/null && reached=$((reached + 1))
  wait $process 2>/dev/null
  look "$name" "$name, kill $i"
}

# Kills a command that changes a file in place before each call of one kind after the other. What is left behind is looked at once:
# between two writes there are many calls.
kill_at_each_call() {
  local name=$1 kind at state
  local -A seen=()
  command_of "$name"
  for kind in open pwrite fsync rename unlink; do
    for ((at = 1;; ++at)); do
      rm -f reached out.h5.journal
      cp "old-$name" out.h5
      FAIL_CALL=$kind FAIL_AT=$at FAIL_KILL=1 FAIL_SAID="$PWD/reached" LD_PRELOAD="$failing" "${command[@]}" >/dev/null 2>&1 &
      wait $! 2>/dev/null
      [[ -e reached ]] || break
      reached=$((reached + 1))
      state=$(sha256sum out.h5* .out.h5.* 2>/dev/null)
      [[ ${seen[$state]:-} ]] && { rm -f .out.h5.*; continue; }
      seen[$state]=1
      look "$name" "$name, $kind $at"
    done
    ((at > 1)) || fault "$name, $kind" "is never called"
  done
}

# A file, and the journal of an append: the first page is not copied yet, as where a reader makes the journal stay.
leave_journal() { # leave_journal NAME FILE WORDS...: words of the append
  local name=$1 file=$2 at
  shift 2
  for ((at = 1; at < 1000; ++at)); do
    rm -f out.h5.journal
    cp "$file" out.h5
    FAIL_CALL=pwrite FAIL_AT=$at FAIL_KILL=1 LD_PRELOAD="$failing" "$kvcodec" encode "$data/part-2.h5" --append out.h5 --continue "$@" >/dev/null 2>&1 &
    wait $! 2>/dev/null
    [[ -e out.h5.journal ]] && break
  done
  rm -f .out.h5.*
  cp out.h5 "old-$name"
  cp out.h5.journal "old-$name.journal" || exit
}
hold() { python3 "$source/test/cli/cases/append_held/hold.py" out.h5 & holder=$! && until [[ -e held ]]; do sleep 0.01; done; }
release() { rm held && wait "$holder"; }

# Kills a command that replaces a file with such a journal before each call that matters. A second word: while it is read.
kill_replacing() {
  local name=$1 held=${2:-} kind at
  leave_journal "$name" "${@:3}"
  command_of "$name"
  content_of "$name" || exit  # that of before, and it completes the change
  mv decoded "old-$name-decoded"
  "${command[@]}" >/dev/null 2>said || { echo "$name: $(cat said)" && exit 1; }
  content_of "$name" || exit
  mv decoded "new-$name-decoded"
  if ((count > 0)); then
    kill_at_random_calls "$name" "$held"
    return
  fi
  for kind in fsync rename unlink; do
    for ((at = 1;; ++at)); do
      kill_before_call "$name" "$held" "$kind" $at
      [[ -e reached ]] || break
    done
    ((at > 1)) || fault "$name, $kind" "is never called"
  done
}
kill_before_call() { # kill_before_call NAME HELD KIND AT
  local name=$1 held=$2 kind=$3 at=$4
  rm -f reached out.h5
  cp "old-$name" out.h5
  cp "old-$name.journal" out.h5.journal
  [[ $held ]] && hold
  FAIL_CALL=$kind FAIL_AT=$at FAIL_KILL=1 FAIL_SAID="$PWD/reached" LD_PRELOAD="$failing" "${command[@]}" >/dev/null 2>&1 &
  wait $! 2>/dev/null
  [[ $held ]] && { look_into "$name" && [[ $content != neither ]] || fault "$name, $kind $at" "cannot be read beside another reader"; }
  [[ $held ]] && release
  [[ -e reached ]] || return
  reached=$((reached + 1))
  look_into "$name"
  case $content in
    new) new=$((new + 1)) ;;
    old) old=$((old + 1)) ;;
    *) fault "$name, $kind $at" "neither the documents of before nor those of after are there" ;;
  esac
  "${command[@]}" >/dev/null 2>said-next || fault "$name, $kind $at" "the next run fails: $(cat said-next)"
  check && [[ ! -e out.h5.journal ]] || fault "$name, $kind $at" "the next run leaves a journal"
}
declare -A calls  # that a command makes of a kind, as far as is known
# Learns from whether the last call that was chosen was there.
note_calls() { # note_calls NAME KIND AT MOST
  if [[ ! -e reached ]]; then
    calls[$1,$2]=$(($3 > 1 ? $3 - 1 : 1))
  elif (($3 > $4 / 2)); then
    calls[$1,$2]=$(($4 * 2))  # the next calls may lie beyond
  fi
}
kill_at_random_calls() { # kill_at_random_calls NAME HELD
  local name=$1 held=$2 kind at most end=$((reached + count)) among=(open write pwrite ftruncate fsync rename unlink)
  while ((reached < end)); do
    kind=${among[$((RANDOM % ${#among[@]}))]}
    most=${calls[$name,$kind]:-16}
    at=$((1 + (RANDOM * 32768 + RANDOM) % most))
    kill_before_call "$name" "$held" "$kind" $at
    note_calls "$name" "$kind" $at $most
  done
}
if [[ $what == left ]]; then
  "$kvcodec" encode "$data/part-1.h5" --codec sparse --book "$data/dict.h5" --quiet -o old-sparse >/dev/null || exit
  for held in "" held; do
    [[ $held ]] && ! python3 -c pass 2>/dev/null && continue
    for name in compact rm encode; do kill_replacing left_$name "$held" old-append; done
    kill_replacing left_pack "$held" old-sparse --book "$data/dict.h5"
  done
elif [[ $what == steps ]]; then
  kill_at_each_call append
  kill_at_each_call dump_more
  # A file system without locks.
  rm -f out.h5.journal
  cp old-append out.h5
  command_of append
  FAIL_CALL=fcntl FAIL_AT=1 FAIL_ON=1 LD_PRELOAD="$failing" "${command[@]}" >/dev/null 2>said || fault "append, without locks" "fails: $(cat said)"
  grep -q "out.h5: cannot be locked (No locks available), so that other runs are not kept out" said ||
    fault "append, without locks" "says: $(cat said)"
  holds append new || fault "append, without locks" "its documents are not there"
  without_locks() { env FAIL_CALL=fcntl FAIL_AT=1 FAIL_ON=1 LD_PRELOAD="$failing" "$@"; }
  without_locks "$kvcodec" decode out.h5 -o decoded --overwrite --quiet >/dev/null 2>said || fault "decode, without locks" "fails: $(cat said)"
  cmp -s decoded new-append-decoded || fault "decode, without locks" "its documents are not there"
  # The Python package reads there, too, and syncs what it writes.
  export PYTHONPATH=$source/formats/python PYTHONDONTWRITEBYTECODE=1 KVCODEC_LIBRARY=${kvcodec%/*}/libkvcodec.so
  for python in python3 /usr/bin/python3; do
    "$python" -c 'import kvfiles' 2>/dev/null || continue
    wanted=$("$python" -c 'import kvfiles; print(sum(d.key(0).sum() + len(d) for d in kvfiles.open("out.h5")))')
    found=$(without_locks "$python" -c 'import kvfiles; print(sum(d.key(0).sum() + len(d) for d in kvfiles.open("out.h5")))' 2>&1)
    [[ $found == "$wanted" && $wanted ]] || fault "kvfiles, without locks" "reads $found, not $wanted"
    write='import kvfiles, numpy; kvfiles.from_cache(numpy.ones((1, 2, 1, 1, 9, 8), "f"), None, "w.h5")'
    FAIL_CALL=fsync FAIL_AT=1 LD_PRELOAD="$failing" "$python" -c "$write" >/dev/null 2>said && fault "kvfiles, fsync" "it is not called"
    grep -q "kvfiles.library.Error: w.h5: " said && [[ ! -e w.h5 ]] || fault "kvfiles, fsync" "says: $(tail -n 1 said)"
    break
  done
fi
if [[ $what == steps || $what == left ]]; then
  left && fault "$what" "temporary files are left: $(compgen -G '.out.h5.*' | tr '\n' ' ')"
  echo "killed before $reached calls: the documents of before $old times, those of after $new times, $faults faults"
  ((faults == 0 && old > 0 && new > 0))
  exit
fi

kinds=(write pwrite fsync rename ftruncate open mmap malloc)
fail_one() {
  local name=$1 kind=${kinds[$((i % ${#kinds[@]}))]} at most status
  most=${calls[$name,$kind]:-64}
  at=$((1 + (RANDOM * 32768 + RANDOM) % most))
  rm -f reached
  timeout 60 env FAIL_CALL=$kind FAIL_AT=$at FAIL_SAID="$PWD/reached" LD_PRELOAD="$failing" "${command[@]}" >/dev/null 2>said
  status=$?
  [[ -e reached ]] && reached=$((reached + 1))
  note_calls "$name" "$kind" $at $most
  look "$name" "$name, $kind $at"
  ((status == 124)) && fault "$name, $kind $at" "does not end"
  if ((status >= 128)) && [[ $kind == malloc || $kind == mmap ]]; then
    # HDF5 1.10 does not finish handling its errors if its first calls find no memory; libraries that generate code may not either.
    ended=$((ended + 1))
    rm -f .out.h5.*
    return
  fi
  ((status >= 128)) && fault "$name, $kind $at" "ends with signal $((status - 128)): $(head -c 200 said)"
  ((status == 0)) && [[ $there != new ]] && fault "$name, $kind $at" "says that all is well"
  ((status != 0)) && [[ ! -s said ]] && fault "$name, $kind $at" "says nothing"
  left && fault "$name, $kind $at" "leaves $(compgen -G '.out.h5.*')" && rm -f .out.h5.*
}

for ((i = 0; i < count; ++i)); do
  name=${names[$((RANDOM % ${#names[@]}))]}
  rm -f out.h5.journal
  cp "old-$name" out.h5
  command_of "$name"
  case $what in
    kills) kill_one "$name" ;;
    calls) fail_one "$name" ;;
  esac
done
# The next run that writes there cleans up.
command_of encode && "${command[@]}" >/dev/null 2>&1
left && fault "$what" "temporary files are left: $(compgen -G '.out.h5.*' | tr '\n' ' ')"
echo "$count $what, $reached reached the command, the old file $old times, the new one $new times, $ended ended by libraries, $faults faults"
((faults == 0))
