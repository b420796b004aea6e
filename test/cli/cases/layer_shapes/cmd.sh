# Caches whose layers, or keys and values, have several shapes; and those of models with latent attention.
. src/test/cli/refused.sh
make_kv --layers 5 --heads 2 --q-heads 6 --dim 36 --shape 2:36:20 --shape 1:36:in:32 --shape of:1 --shape none --shape 2:20:20 \
  --document a:0:300 --document b:0:41 --queries 5 -o kv.h5
kvcodec info kv.h5
kvcodec ls kv.h5 --json | jq -c '[.files[].documents[].bits_per_value]'
kvcodec encode kv.h5 --codec kivi --preset paper --quiet -o codes.h5 >codes
kvcodec decode codes.h5 --quiet -o recon.h5 >recon
kvcodec eval-recon kv.h5 recon.h5 --attention
kvcodec info codes.h5 | sed -n '/^stream/,/^$/p'
# Two pieces give the same as one.
kvcodec encode kv.h5 --codec none --documents a --quiet -o one.h5 >one
kvcodec encode kv.h5 --append one.h5 --documents b --quiet -o two.h5 >two
kvcodec decode two.h5 --quiet -o all.h5 >all
kvcodec eval-recon kv.h5 all.h5 | tail -n 2
refused encode kv.h5 --codec sparse --book data/dict.h5 -o x.h5
kvcodec attend codes.h5 --queries kv.h5 --check --json --quiet -o outputs.h5 | jq -c "[.layers[] | [.layer, .relative_error < 0.2, .check.largest_relative_difference < 1e-5]]"
kvcodec check outputs.h5
refused select codes.h5 --queries kv.h5 --budget 9 -o x.h5
kvcodec select codes.h5 --queries kv.h5 --by codes --share each --budget 9 --json --quiet -o selection.h5 | jq -c "[.layers[].layer]"
kvcodec check selection.h5

# Books for kinds of layers: a hybrid's full-attention layers, windows beside wider global layers, layers without values.
coded() { # KV: what codes of each codec with a book, and of selfindex, give back, and from what groups
  kvcodec train-transform $1.h5 --most-bits 6 --quiet --json -o $1-transform.h5 | jq -c '.layer_group'
  kvcodec train-dict $1.h5 --atoms 40 --sparsity 4 --layer-group 2 --steps 4 --quiet --json -o $1-sparse.h5 | jq -c '.key | keys[:2]'
  kvcodec train-rvq $1.h5 --preset small --vectors 2000 --entries-value 8 --entries-low 8 --entries-high 8 --quiet -o $1-rvq.h5 >trained
  for codec in transform sparse rvq selfindex selfindex+rvq; do
    book=; if [ -e $1-${codec#*+}.h5 ]; then book="--book $1-${codec#*+}.h5"; fi
    kvcodec encode $1.h5 --codec $codec $book --documents 0 --quiet -o begun.h5 --overwrite >codes
    kvcodec encode $1.h5 --append begun.h5 $book --documents 1 --verify --quiet -o $1-codes.h5 --overwrite >codes
    kvcodec cat $1-codes.h5 -o joined.h5 --overwrite --quiet >joined
    kvcodec decode joined.h5 $book --quiet -o recon.h5 --overwrite >recon
    kvcodec eval-recon $1.h5 recon.h5 --json | jq -c '.reconstructions[0] | [(.layers | length), .key.snr_db > 1, (.value.snr_db // 99) > 1]'
    kvcodec info joined.h5 --json | jq -c '[.layers, .layer_group]'
  done
}
make_kv --layers 8 --dim 32 --shape none --shape none --shape none --shape 2:32:32 --shape none --shape none --shape none --shape 2:32:32 \
  --tokens 1300 --documents 2 --queries 5 -o hybrid.h5
coded hybrid
kvcodec attend hybrid-codes.h5 --book hybrid-rvq.h5 --queries hybrid.h5 --check --json | jq -c '[.layers[].layer]'
kvcodec index hybrid-codes.h5 --book hybrid-rvq.h5 --quiet -o index.h5 >index
kvcodec select hybrid-codes.h5 --book hybrid-rvq.h5 --queries hybrid.h5 --by clusters --index index.h5 --budget 9 --quiet --json | jq -c '[.layers[].layer]'
make_kv --layers 4 --dim 48 --shape 2:32:32 --shape 1:48:48 --shape 2:32:32 --shape 1:48:48 --tokens 1300 --documents 2 --queries 5 -o wide.h5
coded wide
refused select wide-codes.h5 --book wide-rvq.h5 --queries wide.h5 --budget 9 -o x.h5
kvcodec select wide-codes.h5 --book wide-rvq.h5 --queries wide.h5 --budget 9 --share each --quiet --json | jq -c '[.layers[].layer]'
make_kv --layers 4 --heads 1 --dim 40 --shape 1:40:in:32 --shape 1:40:in:32 --shape 1:40:24 --shape 1:40:24 --tokens 1300 --documents 2 -o less.h5
coded less
# A book for other layers.
refused encode wide.h5 --codec transform --book hybrid-transform.h5 -o x.h5

# Latent attention: one key, and values in it.
echo "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20" >ids
kvcodec dump-kv --model src/test/golden/model/deepseek_v3-1 --tokens ids --queries last:4 --dtype f32 --quiet -o latent.h5 >latent
kvcodec info latent.h5 | sed -n '/^shape/,/^keys/p'
for codec in lossless kvcomp:block=4 q4; do
  kvcodec encode latent.h5 --codec $codec --quiet -o latent-codes.h5 --overwrite >codes
  kvcodec decode latent-codes.h5 --dtype f32 --quiet -o latent-recon.h5 --overwrite >recon
  kvcodec eval-recon latent.h5 latent-recon.h5 --attention --json | jq '.reconstructions[0] | [.key.values, .value, .attention.queries, .attention.output_error < 1]' -c
done
# Keys turned back before they are coded.
kvcodec encode latent.h5 --codec none --rope undo --quiet -o turned.h5 >turned
kvcodec decode turned.h5 --dtype f32 --quiet -o turned-recon.h5 >turned
kvcodec eval-recon latent.h5 turned-recon.h5 --json | jq '.reconstructions[0].key.snr_db > 45'
refused sensitivity --model src/test/golden/model/deepseek_v3-1 --text src/LICENSE -o x.h5

# Layers without attention store nothing.
kvcodec dump-kv --model src/test/golden/model/qwen3_next-1 --tokens ids --queries last:4 --quiet -o delta.h5 >delta
kvcodec info delta.h5 | sed -n '/^shape/,/^layers/p'
kvcodec encode delta.h5 --codec lossless --verify --quiet -o delta-codes.h5 >delta
kvcodec decode delta-codes.h5 --quiet -o delta-recon.h5 >delta
kvcodec eval-recon delta.h5 delta-recon.h5 --attention --json | jq '.reconstructions[0] | [.key.mse, .value.mse, .attention.output_error]' -c
refused dump-kv --model src/test/golden/model/qwen3_next-1 --tokens ids --layers 0 -o x.h5
refused sensitivity --model src/test/golden/model/qwen3_next-1 --text src/LICENSE -o x.h5
