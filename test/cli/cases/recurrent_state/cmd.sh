# The state of recurrent layers goes with its document, byte for byte, and a model goes on from it.
set -e
. src/test/cli/letters_model.sh
. src/test/cli/refused.sh
# A small Qwen3.5 that reads letters.
letters_model qwen3_5-1
for number in 1 2 3; do tail -c +$((number * 1000)) letters | head -c $((600 + 200 * number)) >$number.txt; done
kvcodec dump-kv --model model --text 1.txt 2.txt 3.txt --dtype f32 --queries last:4 --quiet -o kv.h5 >dumped
kvcodec info kv.h5 | grep -E '^state'
kvcodec ls kv.h5 --json | jq -c '[.files[].documents[] | [.bytes, .state_bytes, .bits_per_value]]'
kvcodec check kv.h5

state_of kv.h5 >before
cut -d' ' -f1,2 before
same() { state_of "$@" | cmp before && echo "$1 has the state"; }
kvcodec train-transform kv.h5 --quiet -o book.h5 >book
for codec in "lossless" "q4" "transform --book book.h5" "kvcomp+none"; do
  kvcodec encode kv.h5 --codec $codec --quiet -o codes.h5 --overwrite >codes
  same codes.h5 $(case $codec in transform*) echo --book book.h5 ;; esac)
  kvcodec decode codes.h5 $(case $codec in transform*) echo --book book.h5 ;; esac) --quiet -o recon.h5 --overwrite >decoded
  same recon.h5
done
kvcodec info codes.h5 | grep -E '^state'

# A model goes on as if it had read the text, and as transformers' cache says.
kvcodec encode kv.h5 --codec lossless --quiet -o lossless.h5 >codes
goes_on kv.h5 lossless.h5

# Codes that grow have the state behind what was read, whether they were decoded for it or not. The last token was not read.
for cache in decoded coded; do
  kvcodec generate lossless.h5 --documents 0 --model model --prompt " and so" --tokens 24 --no-stop --cache $cache --json --quiet -o grown.h5 --overwrite >grown.json
  kvcodec generate grown.h5 --model model --prompt " on" --tokens 12 --json --quiet | jq -c .tokens >grown.$cache
done
cmp grown.decoded grown.coded
text=$(kvcodec generate kv.h5 --documents 0 --model model --prompt " and so" --tokens 23 --no-stop --json --quiet | jq -r .text)
kvcodec generate --model model --prompt "$(cat 1.txt) and so$text on" --tokens 12 --json --quiet | jq -c .tokens | cmp - grown.decoded
rm grown.h5

# What copies documents.
kvcodec cat kv.h5 --quiet -o copied.h5 >copied
same copied.h5
kvcodec cat lossless.h5 --documents 2 --quiet -o third.h5 >copied
kvcodec cat lossless.h5 --documents 0,1 --quiet -o two.h5 >copied
kvcodec cat two.h5 third.h5 --quiet -o copied-codes.h5 >copied
same copied-codes.h5
kvcodec pack-indices copied-codes.h5 --unpack --quiet -o plain.h5 >copied
same plain.h5
kvcodec split lossless.h5 --size 2 -o 'part-{}.h5' --quiet >split && ls part-*
for number in 1 2; do kvcodec dump-kv --model model --text $number.txt --dtype f32 --quiet -o alone$number.h5 >dumped; done
cp alone1.h5 grown.h5
kvcodec dump-kv --model model --text 2.txt --append grown.h5 --quiet >dumped
kvcodec cat alone1.h5 alone2.h5 --quiet -o both.h5 >copied
state_of both.h5 >both && state_of grown.h5 | cmp both && echo "grown.h5 has the states"
kvcodec check grown.h5
kvcodec cat kv.h5 --documents 0 --quiet -o first.h5 >copied
kvcodec encode first.h5 --codec lossless --quiet -o grown-codes.h5 >codes
kvcodec cat kv.h5 --documents 1,2 --quiet -o others.h5 >copied
kvcodec encode others.h5 --append grown-codes.h5 --quiet >codes
same grown-codes.h5
kvcodec rm grown-codes.h5 --documents 0,1 --quiet -o removed.h5 >removed
kvcodec compact removed.h5 --quiet -o compact.h5 >removed
state_of kv.h5 --documents 2 >third && state_of compact.h5 | cmp - third && echo "compact.h5 has the state"
kvcodec check grown-codes.h5 compact.h5
state_of kv.h5 >x
kvcodec import state.safetensors --quiet -o imported.h5 >imported
state_of imported.h5 | cmp - before && echo "imported"

# A part has no state, and states are not joined.
kvcodec decode lossless.h5 --tokens 0:20 -o part.h5 2>&1 >decoded | grep state
kvcodec ls part.h5 --json | jq -c '[.files[].documents[].state_bytes]'
set +e
refused join kv.h5 -o joined.h5
refused generate part.h5 --documents 0 --model model --prompt " and so"
kvcodec export kv.h5 --to numpy --documents 0 -o cache.npz 2>&1 >/dev/null | grep state
# Damage.
cp kv.h5 bad.h5 && damage bad.h5 flip /state/data
# A state's last bits, and so its checksums, depend on the processor.
{
  kvcodec check bad.h5
  refused encode bad.h5 --codec lossless -o x.h5
  refused generate bad.h5 --documents 0 --model model --prompt " and so"
} | sed 's/([0-9a-f]* stored, [0-9a-f]* found)/(… stored, … found)/'
