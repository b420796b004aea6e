# The report of check on good files of all types, and on faulty ones; its status is a sum of bits.
check() { # the options and files of check
  kvcodec check "$@"
  echo "  status $?"
}
cd data
check kv.h5 f16.h5 dict.h5 sparse.h5 kivi.h5 selfindex.h5 kvcomp.h5
check sparse.h5 --book dict.h5
check sparse.h5 --book other-dict.h5
cd ..
kvcodec index data/demo.h5 -o index.h5 --quiet >/dev/null
kvcodec encode data/demo.h5 --codec kivi -o kivi.h5 --quiet --verify >/dev/null
kvcodec select kivi.h5 --queries data/demo.h5 --by oracle -o selection.h5 --quiet >/dev/null
kvcodec attend kivi.h5 --queries data/demo.h5 -o outputs.h5 --quiet >/dev/null
check index.h5 selection.h5 kivi.h5 outputs.h5
# Damage: a bit, a chunk that reads as zeros (which checksums accept), a part of codes.
cp data/kv.h5 bit.h5 && damage bit.h5 flip /layers/2/key
cp data/kv.h5 lost.h5 && damage lost.h5 lose /layers/2/key
cp data/kivi.h5 part.h5 && damage part.h5 flip-part 1 2
check bit.h5 lost.h5 part.h5
kvcodec encode lost.h5 --codec none -o x.h5
echo "  status $?"
# Conditions of the format: values, positions, the type itself.
cp data/kv.h5 value.h5 && damage value.h5 set /layers/3/value 5000 inf
cp data/kv.h5 position.h5 && damage position.h5 set /positions 7 6
check value.h5 position.h5 src/LICENSE missing.h5
# Files from before there were digests.
cp data/kv.h5 old.h5 && damage old.h5 undigest /
check old.h5 value.h5
kvcodec info old.h5 | sed -n 2p
kvcodec info old.h5 --json | grep -E '"(checksums|digests)"'
kvcodec encode old.h5 --codec none -o x.h5 >/dev/null
echo "  status $?"
kvcodec check part.h5 missing.h5 --json
echo "  status $?"
# Text from files is escaped for the terminal.
cp data/kv.h5 rude.h5 && damage rude.h5 attribute / model "$(printf 'a\033[2Jb')"
kvcodec info rude.h5 | grep ^model
