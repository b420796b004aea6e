# Attention over codes of every kind: the report, the same figures as JSON, and the outputs as a file.
set -e
encode() { kvcodec encode data/demo.h5 --codec "$@" --quiet >/dev/null; }
encode none -o none.h5
encode kvcomp --preset paper --block 16 --window 20 -o kvcomp.h5
encode kivi --preset paper --bits 4 --key-group 16 --window 16 -o kivi.h5
kvcodec train-dict data/demo.h5 --atoms 64 --layer-group 2 --sparsity 16 --epochs 1 --quiet -o dict.h5 >/dev/null
encode sparse --preset paper --book dict.h5 --sparsity 16 --embed-book --pack -o sparse.h5

# A lossless codec changes nothing.
kvcodec attend none.h5 --queries data/demo.h5 --check

# The others do, but multiplying without decoding differs from decoding first only by rounding.
for codec in kvcomp kivi sparse; do
  kvcodec attend $codec.h5 --queries data/demo.h5 --check --json -o $codec-out.h5 >report.json
  grep -E '"(codec|multiplies|documents|tokens|queries|output)"' report.json
  awk -F'[:,]' '/"relative_error"/ { n++; bad += !($2 > 0.001 && $2 < 0.9) }
                /"largest_relative_difference"/ { n++; bad += !($2 < 0.0001) }
                /"(seconds|time_ratio)"/ { n++; bad += !($2 > 0) }
                END { print n " figures, " bad " of them strange" }' report.json
done

# The result of a part does not depend on the other parts that are requested.
kvcodec attend sparse.h5 --queries data/demo.h5 --layers 1,2 --documents 1 --json -o part.h5 |
  grep -E '"(documents|tokens|queries|layer)"'
kvcodec info part.h5 | grep -v -e "^file " -e "^source " -e "  kvcodec" | sed "s:$SOURCE:SOURCE:"
kvcodec attend sparse.h5 --queries data/demo.h5 --layers 1,2 -o - | kvcodec info - --json | grep -e '"type"' -e '"queries"'

# Codes of the beginning of the documents: later queries see all of it, and earlier ones are absent.
kvcodec decode none.h5 --tokens 0:40 -o begin.h5 >/dev/null
kvcodec decode none.h5 --tokens 48: -o end.h5 >/dev/null
for part in begin end; do
  kvcodec encode $part.h5 --codec none -o $part-codes.h5 >/dev/null
  kvcodec attend $part-codes.h5 --queries data/demo.h5 --json | grep -m 4 -E '"(documents|tokens|queries|relative_error)"'
done
