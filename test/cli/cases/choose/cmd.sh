# The results of choose for a rate and for a loss, which its command reproduces, and its refusals.
. src/test/cli/refused.sh
kvcodec dump-kv --model src/data/demo-model --text src/data/text/moby-dick.txt --chunk 512 --max-tokens 2048 --queries none --quiet -o kv.h5 >/dev/null
fast="--codecs kvcomp,kivi,sparse,none"
kvcodec choose kv.h5 --total-bits 4 $fast --json 2>said >chosen.json
grep -c 'energy alone' said
jq -r '.codecs[] | "\(.codec): \(.reached), \(if .reached then .bits_per_value > 3.7 and .bits_per_value <= 4 else .reason end)"' chosen.json
jq -r '.choice.codec, .judged_by, (.choice.snr_db == ([.codecs[] | select(.reached).snr_db] | max))' chosen.json
# The same again, and for any number of threads.
kvcodec choose kv.h5 --total-bits 4 $fast --threads 1 --json --quiet | jq '[.codecs, .choice] | del(.. | .seconds?)' >again
jq '[.codecs, .choice] | del(.. | .seconds?)' chosen.json | cmp - again && echo "the same again"
# The command gives a file with about that many bits.
sh -c "$(jq -r .command chosen.json) --json --quiet" | jq '.bits_per_value > 3.8 and .bits_per_value < 4.1'
kvcodec choose kv.h5 --total-bits 4 --codecs kivi --layers 0-1 --documents 0,1 --quiet | grep -c '^kvcodec encode kv.h5 --codec kivi .*--documents 0,1 --layers 0-1 -o codes.h5$'
# A model decides, and determines the bits that a loss needs.
judge="--model src/data/demo-model --text src/LICENSE"
kvcodec choose kv.h5 --total-bits 4 --codecs kvcomp,kivi $judge --json --quiet |
  jq -r '.judged_by, ([.choice.nll_rise, .choice.kl] | max) == ([.codecs[] | [.nll_rise, .kl] | max] | min)'
kvcodec choose kv.h5 --max-nll 0.05 --codecs kvcomp,fp8 $judge --json --quiet |
  jq -r '.judged_by, .choice.codec, ([.codecs[] | .nll_rise <= 0.05 and .kl <= 0.05] | all)'
# Weights: for the search where bits are allocated, else in the command too.
kvcodec sensitivity --model src/data/demo-model --text src/data/text/pride-and-prejudice.txt --chunk 200 --max-documents 2 --quiet -o s.h5 >/dev/null
for codec in kvcomp kivi; do
  kvcodec choose kv.h5 --total-bits 3.5 --weights s.h5 --codecs $codec --quiet | tail -n 1 >encode
  sed "s/--max-error [0-9.]*/--max-error X/; s/--layer-bits '[0-9 ]*'/--layer-bits N/; s/--bits [0-9] //" encode
  sh -c "$(cat encode) --overwrite --json --quiet" | jq '.bits_per_value > 3.3 and .bits_per_value < 3.6'
done
# The rate shown is that of the larger sample, in which windows are a smaller share of the longer documents.
make_kv --layers 2 --heads 2 --dim 32 --document a:0:40000 -o window.h5
kvcodec choose window.h5 --total-bits 4 --codecs kivi --json --quiet >window.json
sh -c "$(jq -r .command window.json) --overwrite --json --quiet" | jq --argjson shown "$(jq .choice.bits_per_value window.json)" '$shown - .bits_per_value < 0.15'
# A transform that is learned on the way, by a command that learns it again.
kvcodec dump-kv --model src/data/demo-model --text src/data/text/moby-dick.txt --chunk 512 --max-tokens 5120 --queries none --quiet -o long.h5 >/dev/null
kvcodec choose long.h5 --total-bits 1.5 --codecs transform --learn learned.h5 --json --quiet >chosen.json
jq -r '.choice.codec, .choice.book, .choice.bits_per_value <= 1.515, .learn_command' chosen.json
sh -c "$(jq -r .learn_command chosen.json | sed s/learned.h5/typed.h5/)" >/dev/null
kvcodec info learned.h5 --json | jq .digest >digest
kvcodec info typed.h5 --json | jq .digest | cmp - digest && echo "the same transform"
refused choose long.h5 --total-bits 1 --learn learned.h5
refused choose kv.h5 --total-bits 1 --learn new.h5
refused choose kv.h5 --total-bits 1 --learn new.h5 --codecs kivi
refused choose kv.h5 --total-bits 0.5 --codecs kivi,none --quiet
refused choose kv.h5 --total-bits 0 --codecs kivi,none --quiet
refused choose kv.h5 --total-bits 4 --time 0 --quiet
refused choose kv.h5 --total-bits 4 --codecs sparse --quiet
refused choose kv.h5 --total-bits 4 --codecs kvcomp,kivy
refused choose kv.h5 --total-bits 4 --codecs kvcomp,kivi:bits=3
refused choose kv.h5
refused choose kv.h5 --total-bits 4 --max-nll 0.1
refused choose kv.h5 --max-nll 0.1
refused choose kv.h5 --total-bits 4 --model src/data/demo-model
refused choose kv.h5 --total-bits 4 --book data/dict.h5 --codecs kivi
refused choose kv.h5 --total-bits 4 --book kv.h5
refused choose missing.h5 --total-bits 4
