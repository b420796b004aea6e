# Ranks of MPI: the same bytes for any number of them and without MPI; an error of one rank ends all, with one sentence and its status.
# kvcodec_ranks is kvcodec with MPI (test/cli/CMakeLists.txt).
command -v mpirun >/dev/null 2>&1 && command -v kvcodec_ranks >/dev/null 2>&1 || { echo "no MPI"; exit 77; }
export OMP_NUM_THREADS=1
# Sets the number of ranks regardless of the machine. On standard error only sentences of this program are checked: mpirun and its
# libraries print their own, for instance if there is no /sys.
ranks() {
  count=$1
  shift
  timeout 300 mpirun -q --oversubscribe --allow-run-as-root --bind-to none -n "$count" "$@" 2>"$SAID"
  ended=$?
  grep '^kvcodec ' "$SAID" >&2
  return $ended
}
SAID=$PWD/said.txt
make_kv --layers 2 --heads 2 --dim 16 --document a:0:1500 --document b:0:900 --document c:0:700 -o one.h5
make_kv --layers 2 --heads 2 --dim 16 --document d:0:600 --document e:0:33 -o two.h5
train_all() {  # FOLDER WORDS...: the program, with what starts it
  mkdir "$1" && cd "$1" && shift || exit 1
  "$@" train-transform ../one.h5 ../two.h5 --layer-group 1 --sides apart -o transform.h5 >transform.txt
  "$@" train-rvq ../one.h5 ../two.h5 --vectors 4000 --entries-value 32 --entries-low 32 --entries-high 32 --epochs 3 --refits 1 \
    -o rvq.h5 | sed 's/ [0-9.]* ms//; s/ [0-9.]* s//' >rvq.txt
  "$@" train-dict ../one.h5 ../two.h5 --atoms 48 --sparsity 3 --batch 256 --epochs 1 -o adam.h5 >/dev/null
  "$@" train-dict ../one.h5 ../two.h5 --atoms 48 --sparsity 3 --batch 256 --epochs 1 --optimizer gradient --normalize signal -o gradient.h5 >/dev/null
  cd ..
}
train_all alone kvcodec
for count in 1 2 4; do
  train_all "$count" ranks "$count" kvcodec_ranks
  for book in transform rvq adam gradient; do cmp "alone/$book.h5" "$count/$book.h5" && echo "$count: $book"; done
  for said in transform rvq; do cmp "alone/$said.txt" "$count/$said.txt"; done
done
echo "== an error of rank 1"
mkdir good bad
cp one.h5 good/kv.h5
head -c 5000 one.h5 >bad/kv.h5
on_rank='if [ "$OMPI_COMM_WORLD_RANK" = 1 ]; then cd bad; else cd good; fi; exec kvcodec_ranks'
ranks 3 sh -c "$on_rank train-rvq kv.h5 -o ../never.h5"
echo "status $?"
ranks 3 kvcodec_ranks train-transform one.h5 -o 2/transform.h5
echo "status $?"
ranks 2 kvcodec_ranks train-dict one.h5 --atoms 0 -o never.h5
echo "status $?"
echo "== what one rank alone can do"
ranks 2 kvcodec_ranks encode one.h5 --codec none -o never.h5
echo "status $?"
ranks 2 kvcodec_ranks train-dict - -o never.h5
echo "status $?"
ranks 2 kvcodec_ranks train-dict one.h5 --device cuda -o never.h5
echo "status $?"
ranks 2 kvcodec train-dict one.h5 -o never.h5  # each process prints it
echo "status $?"
ranks 1 kvcodec_ranks encode one.h5 --codec none --quiet -o codes.h5 >/dev/null
echo "status $?"
[ ! -e never.h5 ]
