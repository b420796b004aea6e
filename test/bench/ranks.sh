#!/bin/bash
# Weak scaling of trainings by ranks of MPI: one rank with N tokens against two with 2N, one thread each.
#
#   ranks.sh KVCODEC MAKE_KV FOLDER [ROUNDS]      KVCODEC: built with -DKVCODEC_MPI=ON
#
# Makes two caches of 8 layers of 3 heads of 64 dimensions (32,768 tokens each). Each round runs all cases in turn. Prints the
# medians (smallest .. largest) in seconds, the share of one rank's time, and whether 2 ranks wrote the bytes of 1 for 2N tokens.
set -eu
kvcodec=$(realpath "$(command -v "$1")") make_kv=$(realpath "$2") folder=$3 rounds=${4:-3}
export OMP_NUM_THREADS=1 SOURCE_DATE_EPOCH=1700000000
mkdir -p "$folder"
cd "$folder"
for i in 1 2; do
  # shellcheck disable=SC2046  # two words for each document
  [ -f kv-$i.h5 ] ||
    "$make_kv" --layers 8 --heads 3 --dim 64 $(seq -f "--document part-$i-%.0f:0:512" 64) --seed $i -o kv-$i.h5
done
run() { # <ranks> <output> <command and options ...>
  local ranks=$1 output=$2
  shift 2
  local begin=$EPOCHREALTIME
  mpirun -q --oversubscribe --allow-run-as-root --bind-to none -n "$ranks" "$kvcodec" "$@" --quiet --overwrite -o "$output" >/dev/null
  awk -v a="$begin" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.2f\n", b - a }'
}
middle() { sort -n | awk '{ v[NR] = $1 } END { printf "%s (%s .. %s)", v[int((NR + 1) / 2)], v[1], v[NR] }'; }
dict="train-dict --atoms 2048 --sparsity 16 --layer-group 4 --epochs 1 --tolerance 0"
cases=(
  "train-transform|train-transform|train-transform"
  "train-rvq|train-rvq --vectors 131072 --epochs 6 --refits 1|train-rvq --vectors 262144 --epochs 6 --refits 1"
  "train-dict, steps doubled|$dict --batch 1024|$dict --batch 1024"
  "train-dict, batch doubled|$dict --batch 1024|$dict --batch 2048"
)
rm -f times-*
for round in $(seq "$rounds"); do
  for i in "${!cases[@]}"; do
    IFS='|' read -r _ one two <<<"${cases[i]}"
    # shellcheck disable=SC2086  # several words
    {
      run 1 book.h5 ${one%% *} kv-1.h5 $(cut -s -d' ' -f2- <<<"$one") >>"times-$i-1"
      run 2 book.h5 ${two%% *} kv-1.h5 kv-2.h5 $(cut -s -d' ' -f2- <<<"$two") >>"times-$i-2"
      [ "$round" != 1 ] || {
        cp book.h5 "two-$i.h5"
        run 1 book.h5 ${two%% *} kv-1.h5 kv-2.h5 $(cut -s -d' ' -f2- <<<"$two") >"times-$i-alone"
        cp book.h5 "alone-$i.h5"
      }
    }
  done
done
for i in "${!cases[@]}"; do
  one=$(middle <"times-$i-1") two=$(middle <"times-$i-2")
  efficiency=$(awk -v a="${one%% *}" -v b="${two%% *}" 'BEGIN { printf "%.0f%%", 100 * a / b }')
  same=$(cmp -s "two-$i.h5" "alone-$i.h5" && echo same || echo other)
  echo "| ${cases[i]%%|*} | $one | $two | $efficiency | $(cat "times-$i-alone") | $same bytes |"
done
