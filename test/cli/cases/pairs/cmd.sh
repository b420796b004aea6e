# Keys by one codec, values by another: commands that accept codes accept those of a pair, and each side is the result of its own codec.
. src/test/cli/refused.sh
pair=kvcomp:key-rel=0.3+kivi:bits=3
kvcodec encode data/kv.h5 --codec $pair --quiet --json -o pair.h5 | jq -r .codec
kvcodec encode data/kv.h5 --codec kvcomp:key-rel=0.3 --quiet -o kvcomp.h5 >/dev/null
kvcodec encode data/kv.h5 --codec kivi:bits=3 --rope keep --quiet -o kivi.h5 >/dev/null
kvcodec encode data/kv.h5 --codec kvcomp+kivi --key.key-rel 0.3 --value.bits 3 --quiet -o options.h5 >/dev/null
parameters() { kvcodec info "$1" --json | jq -c .parameters; }
[ "$(parameters pair.h5)" = "$(parameters options.h5)" ] && echo "the same by options"
kvcodec info pair.h5 --json | jq -c '.parameters."key.key-rel", .parameters."value.bits", [.sides[] | .side, .codec]'
kvcodec info pair.h5 | grep -E '^(codec|keys|values) .*k[iv]' | sed 's/[0-9.]* bits/… bits/'
# Each side's codes and values equal those of its codec alone.
streams() { kvcodec info "$1" --json | jq -c --arg side "$2" '[.streams[] | select(.stream | contains("/" + $side + "/"))]'; }
[ "$(streams pair.h5 key)" = "$(streams kvcomp.h5 key)" ] && [ "$(streams pair.h5 value)" = "$(streams kivi.h5 value)" ] && echo "the streams of both"
for codes in pair kvcomp kivi; do kvcodec decode $codes.h5 --quiet -o $codes-kv.h5 >/dev/null; done
kvcodec eval-recon pair-kv.h5 kvcomp-kv.h5 | grep '^all keys'
kvcodec eval-recon pair-kv.h5 kivi-kv.h5 | grep '^all values'
kvcodec check pair.h5 --quiet
# Tokens at random, joined files, and files that grow.
kvcodec decode pair.h5 --documents 1 --tokens 3:40 --quiet -o some.h5 >/dev/null && kvcodec info some.h5 --json | jq -c '.documents | length'
kvcodec encode data/kv.h5 --codec $pair --documents 0 --quiet -o first.h5 >/dev/null
kvcodec encode data/kv.h5 --append first.h5 --documents 1 --quiet >/dev/null
kvcodec info first.h5 --json | jq -c '.documents | length'
kvcodec cat first.h5 --quiet -o joined.h5 >/dev/null && kvcodec check joined.h5 --quiet
refused cat pair.h5 kivi.h5 --quiet -o mixed.h5
# Products straight from codes, where a side's codec can.
kvcodec dump-kv --model src/data/demo-model --text src/data/text/moby-dick.txt --chunk 256 --max-tokens 512 --queries last:8 --quiet -o asking.h5 >/dev/null
kvcodec encode asking.h5 --codec kvcomp+q4 --quiet -o asked.h5 >/dev/null
kvcodec attend asked.h5 --queries asking.h5 --check --json --quiet | jq -c '.multiplies, (.total.check.largest_relative_difference < 1e-4)'
kvcodec attend asked.h5 --queries asking.h5 --quiet | head -n 1 | sed 's/ on .*//'
kvcodec encode asking.h5 --codec selfindex+kvcomp --quiet -o signs.h5 >/dev/null
kvcodec select signs.h5 --queries asking.h5 --by signs --budget 32 --quiet -o selection.h5 >/dev/null && kvcodec info selection.h5 --json | jq .heads
refused select asked.h5 --queries asking.h5 --by signs --budget 32
# A model continues with the cache that a pair gives back.
kvcodec eval-model --model src/data/demo-model --text src/LICENSE --max-documents 1 --codec kvcomp+kivi:bits=4 --codec pair.h5 --json --quiet |
  jq -c '[.settings[] | .codec]'
# Goals, for both sides together; bits go where they gain most.
kvcodec encode asking.h5 --codec kvcomp+kivi --total-bits 6 --quiet --json -o rate.h5 | jq '.bits_per_value > 5.7 and .bits_per_value <= 6.1'
kvcodec encode asking.h5 --codec kvcomp+kvcomp --total-bits 10 --quiet --json -o rate.h5 --overwrite | jq '.bits_per_value > 9.7 and .bits_per_value <= 10.1'
kvcodec encode asking.h5 --codec q4+lossless --quality high --quiet -o quality.h5 >/dev/null && kvcodec info quality.h5 --json | jq -c '[.sides[].codec]'
kvcodec choose asking.h5 --total-bits 6 --codecs kivi,kvcomp+kivi,kvcomp+kivi --json --quiet >chosen.json
jq -c '[.codecs[] | .codec, .reached]' chosen.json
sh -c "$(jq -r .command chosen.json) --quiet --json" | jq '.bits_per_value <= 6.1'
# A book serves the side whose codec needs it; impossible requests are refused.
kvcodec encode data/kv.h5 --codec sparse:book=data/dict.h5+kivi --embed-book --quiet -o book.h5 >/dev/null && kvcodec decode book.h5 --quiet -o book-kv.h5 >/dev/null && echo "decodes by itself"
refused encode data/kv.h5 --codec sparse+kivi -o new.h5
refused encode data/kv.h5 --codec sparse:book=data/dict.h5+rvq -o new.h5
refused encode data/kv.h5 --codec kivi+q4 --bits 3 -o new.h5
refused encode data/kv.h5 --codec kivi+q4 --book data/dict.h5 -o new.h5
refused encode data/kv.h5 --codec kivi+kivy -o new.h5
refused encode data/kv.h5 --codec kivi+q4:bites=3 -o new.h5
refused encode data/kv.h5 --codec kivi:bits=9+q4 -o new.h5
refused encode data/kv.h5 --codec fp8+none --total-bits 3 -o new.h5
refused encode data/kv.h5 --codec kivi+q4 --total-bits 3 --value.bits 3 -o new.h5
refused pack-indices --sorted book.h5 -o new.h5
kvcodec dump-kv --model src/data/demo-model --text src/data/text/moby-dick.txt --chunk 512 --max-tokens 5120 --queries none --quiet -o long.h5 >/dev/null
kvcodec train-transform long.h5 --sides joint --layer-group 1 --quiet -o joint.h5 >/dev/null
refused encode asking.h5 --codec transform:book=joint.h5+kivi -o new.h5
# Documents shorter than a block: all of their keys wait at 16 bits, with the copy that stands for the first token.
make_kv --layers 4 --heads 2 --dim 16 --document a:0:50 --document b:0:200 -o short.h5
kvcodec encode short.h5 --codec kvcomp+sparse --book data/dict.h5 --quiet -o short-codes.h5 >/dev/null
kvcodec decode short-codes.h5 --book data/dict.h5 --quiet -o short-kv.h5 >/dev/null
kvcodec eval-recon short.h5 short-kv.h5 --rate short-codes.h5 --json --quiet | jq -c '.reconstructions[0].rate.key | .exempt_values / (.values / 250)'
kvcodec encode short.h5 --codec kvcomp+sparse --book data/dict.h5 --documents a --quiet -o shorter.h5 >/dev/null
kvcodec eval-recon short.h5 short-kv.h5 --rate shorter.h5 --json --quiet | jq -c '.reconstructions[0].rate.key | .exempt_values == .values'
