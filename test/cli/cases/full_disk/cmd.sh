# A disk that fills up, simulated by a limit on file sizes: exit status 1, the old file stays, no remnant is left.
kvcodec encode data/kv.h5 --codec kivi --preset paper --quiet -o out.h5 >/dev/null
cksum out.h5 >before
(
  ulimit -f 40
  kvcodec encode data/kv.h5 --codec none -o out.h5 --overwrite
  echo "status $?"
  kvcodec decode data/none.h5 -o new.h5
  echo "status $?"
)
cksum out.h5 | cmp - before && echo "out.h5 is as it was"
ls -A
