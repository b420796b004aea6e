# The output of info for each type.
kvcodec info data/kv.h5
kvcodec info data/kivi.h5 --documents a --layers 1
kvcodec info data/dict.h5
# Options that show everything exclude a choice.
. src/test/cli/refused.sh
kvcodec encode data/demo.h5 --codec selfindex --preset paper --exact-tokens 4 --quiet -o si.h5 >/dev/null
kvcodec select si.h5 --queries data/demo.h5 --budget 8 -o selection.h5 >/dev/null
kvcodec sensitivity --model src/data/demo-model --text src/LICENSE --chunk 64 --max-documents 2 --quiet -o noise.h5 >/dev/null
for file in data/dict.h5 selection.h5 noise.h5; do
  refused info $file --layers 99
  refused info $file --documents nope --json
  kvcodec info $file >shown && echo "$file: $(wc -l <shown) lines"
done
