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
refused encode kv.h5 --codec selfindex -o x.h5
refused encode kv.h5 --codec sparse --book data/dict.h5 -o x.h5
refused attend codes.h5 --queries kv.h5 -o x.h5
refused select codes.h5 --queries kv.h5 --by signs --budget 9 -o x.h5
refused index kv.h5 -o x.h5
refused train-dict kv.h5 -o x.h5

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
