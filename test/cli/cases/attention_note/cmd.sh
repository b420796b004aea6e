# Queries in a cache say what its codes do to attention: encode notes what goes wrong, and choose and goals are judged by it.
kvcodec dump-kv --model src/data/demo-model --text src/data/text/moby-dick.txt --chunk 512 --max-tokens 2048 --quiet -o kv.h5 >/dev/null
kvcodec dump-kv --model src/data/demo-model --text src/data/text/moby-dick.txt --chunk 512 --max-tokens 2048 --queries none --quiet -o mute.h5 >/dev/null
said() { # <options of encode...>
  kvcodec encode "$@" --overwrite -o codes.h5 2>&1 >/dev/null | grep -o 'in layers .*\|attention, so .*' || echo nothing
}
for codec in q4 fp8 kivi kvcomp q4+kvcomp; do said kv.h5 --codec $codec; done
coarse=kvcomp:key-rel=0.3
said kv.h5 --codec $coarse
said mute.h5 --codec $coarse
said kv.h5 --codec $coarse --quiet
# The measure is that of eval-recon, over some queries and tokens of a document.
kvcodec encode kv.h5 --codec $coarse --documents 0 --overwrite -o codes.h5 2>&1 >/dev/null | sed -n 's/.*up to \([0-9.]*\) nats.*/\1/p' >noted
kvcodec decode codes.h5 --quiet --overwrite -o recon.h5 >/dev/null
kvcodec eval-recon kv.h5 recon.h5 --attention --json --quiet |
  jq --argjson noted "$(cat noted)" '[.reconstructions[0].attention.layers[].weights_kl] | max / $noted | if . > 0.5 and . < 2 then "near" else . end'
# Goals are judged by attention where there are queries, and by energy with a note where there are none.
said mute.h5 --codec kvcomp --quality low
said kv.h5 --codec kvcomp --quality low
kvcodec info codes.h5 --json | jq -c '.history | map(scan("found: .*")) | length'
for cache in kv mute; do
  kvcodec choose $cache.h5 --total-bits 4 --codecs kvcomp,kivi --json 2>said >chosen.json
  grep -o 'attention, so .*' said
  jq -r '.judged_by as $by | $by, (.choice[$by] == ([.codecs[][$by]] | max)), (.codecs | map(has("attention_db")) | all)' chosen.json
done
# Of many layers eight are judged, at even distances.
make_kv --layers 24 --heads 1 --dim 64 --tokens 200 --queries 8 --document a:0:200 -o deep.h5
kvcodec encode deep.h5 --codec kvcomp --max-error 9 -o deep-codes.h5 2>&1 >/dev/null | grep -o 'in layers [0-9,-]*'
