# Attention errors and the Gaussian bound in eval-recon: properties that do not depend on the machine's last bits.
. src/test/cli/refused.sh
for bits in 2 4; do
  kvcodec encode data/demo.h5 --codec q4 --rotate none --sink 0 --bits $bits -o q$bits.h5 >/dev/null || exit 1
  kvcodec decode q$bits.h5 -o q$bits-kv.h5 >/dev/null || exit 1
done
kvcodec eval-recon data/demo.h5 data/demo.h5 --attention --top 8 | sed -n '/RMS/,$p'
kvcodec eval-recon data/demo.h5 q2-kv.h5 q4-kv.h5 --rate q2.h5 --rate q4.h5 --attention --bound 2>&1 | sed 's/-*[0-9][0-9.]*/N/g' | tr -s ' -'
kvcodec eval-recon data/demo.h5 q4-kv.h5 --rate q4.h5 --attention --bound --per-head --quiet | grep -c '^[0-3], [0-3] '
kvcodec eval-recon data/demo.h5 q2-kv.h5 q4-kv.h5 --rate q2.h5 --rate q4.h5 --attention --bound --quiet --json | tr -d ' \n' >all.json
values() { grep -o "\"$1\":[0-9.e-]*" all.json | cut -d: -f2; }
# For each reconstruction, in this order: all, then layers with their heads.
values weights_kl | awk '{ kl[NR] = $1 } END { half = NR / 2; print (half == 21 && kl[1] > 5 * kl[half + 1] && kl[half + 1] > 0 ? "more bits, less divergence" : "no") }'
values gap_db | awk '{ if ($1 < 0) low = 1 } END { print NR " gaps, " (low ? "some below" : "none below") " the bound" }'
refused eval-recon data/demo.h5 q2-kv.h5 --bound
refused eval-recon data/demo.h5 q2-kv.h5 --top 8
refused eval-recon data/kv.h5 data/kv.h5 --attention
# With fewer tokens than a layer has values there is no bound; only compared tokens count.
kvcodec dump-kv --model src/data/demo-model --text src/LICENSE --chunk 64 --max-tokens 64 --quiet -o few.h5 >/dev/null
kvcodec encode few.h5 --codec q4 --rotate none --sink 0 --center none -o few-q4.h5 >/dev/null
kvcodec eval-recon few.h5 few.h5 --rate few-q4.h5 --bound 2>&1 | grep -E '^few.h5  |note'
# Keys before their rotation give no scores.
kvcodec dump-kv --model src/data/demo-model --text src/LICENSE --chunk 64 --max-tokens 64 --queries last:8 --pre-rope --quiet -o pre.h5 >/dev/null
refused eval-recon pre.h5 pre.h5 --attention
