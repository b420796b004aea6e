# encode --codec auto: the codec that choose would name; the found options can be typed; and refusals.
. src/test/cli/refused.sh
kvcodec dump-kv --model src/data/demo-model --text src/data/text/moby-dick.txt --chunk 512 --max-tokens 2048 --queries none --quiet -o kv.h5 >/dev/null
kvcodec encode kv.h5 --codec auto --total-bits 4 --json -o auto.h5 2>said | jq '.bits_per_value > 3.8 and .bits_per_value < 4.1'
sed 's/--codec kvcomp .*: a sample of 1024 tokens takes [0-9.]* bits per value, with [0-9.]* dB/--codec kvcomp …/' said
chosen=$(kvcodec choose kv.h5 --total-bits 4 --json --quiet | jq -r .choice.codec)
kvcodec info auto.h5 --json | jq -r --arg chosen "$chosen" '.codec == $chosen'
found=$(kvcodec info auto.h5 | sed -n 's/.*(found: \(.*\)).*/\1/p')
eval "kvcodec encode kv.h5 $found --quiet -o typed.h5" >/dev/null
kvcodec info auto.h5 --json | jq .parameters >parameters
kvcodec info typed.h5 --json | jq .parameters | cmp - parameters && echo "the same codes, typed"
# A book takes part, and goes into the product.
kvcodec dump-kv --model src/data/demo-model --text src/data/text/moby-dick.txt --chunk 512 --max-tokens 5120 --queries none --quiet -o long.h5 >/dev/null
kvcodec train-transform long.h5 --quiet -o transform.h5 >/dev/null
kvcodec encode kv.h5 --codec auto --total-bits 1 --book transform.h5 --quiet --json -o apart.h5 | jq -r '.codec, (.bits_per_value | . <= 1.02 and . >= 0.97)'
kvcodec encode kv.h5 --codec auto --total-bits 1 --book transform.h5 --embed-book --quiet -o book.h5 >/dev/null
kvcodec decode book.h5 --quiet -o decoded.h5 >/dev/null && echo "decodes by itself"
# A codec without a book is chosen: there is nothing to embed.
kvcodec encode kv.h5 --codec auto --total-bits 10.9 --book transform.h5 --embed-book --documents 0 --quiet --json -o fine.h5 | jq -r '.bits_per_value <= 10.9'
# A model decides.
kvcodec encode kv.h5 --codec auto --max-nll 0.05 --model src/data/demo-model --text src/LICENSE --documents 0 --quiet --json -o loss.h5 | jq -r '.bits_per_value < 4'
refused encode kv.h5 --codec auto -o new.h5
refused encode kv.h5 --codec auto --quality high -o new.h5
refused encode kv.h5 --codec auto --max-nll 0.1 -o new.h5
refused encode kv.h5 --codec auto --total-bits 3 --preset paper -o new.h5
refused encode kv.h5 --codec auto --total-bits 3 --bits 2 -o new.h5
refused encode kv.h5 --codec auto:bits=2 --total-bits 3 -o new.h5
refused encode kv.h5 --codec auto --total-bits 0.3 -o new.h5 --quiet
refused encode kv.h5 --append auto.h5 --codec auto -o new.h5
