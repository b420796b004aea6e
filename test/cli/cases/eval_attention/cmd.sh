# Attention errors and the Gaussian bound in eval-recon: what must hold whatever the machine's last bits are.
. src/test/cli/refused.sh
for bits in 2 4; do
  kvcodec encode data/demo.h5 --codec q4 --bits $bits -o q$bits.h5 >/dev/null || exit 1
  kvcodec decode q$bits.h5 -o q$bits-kv.h5 >/dev/null || exit 1
done
kvcodec eval-recon data/demo.h5 data/demo.h5 --attention --top 8 | sed -n '/RMS/,$p'
kvcodec eval-recon data/demo.h5 q2-kv.h5 q4-kv.h5 --rate q2.h5 --rate q4.h5 --attention --bound | sed 's/-*[0-9][0-9.]*/N/g' | tr -s ' -'
kvcodec eval-recon data/demo.h5 q4-kv.h5 --rate q4.h5 --attention --bound --per-head | grep -c '^[0-3], [0-3] '
kvcodec eval-recon data/demo.h5 q2-kv.h5 q4-kv.h5 --rate q2.h5 --rate q4.h5 --attention --bound --json | tr -d ' \n' >all.json
values() { grep -o "\"$1\":[0-9.e-]*" all.json | cut -d: -f2; }
# Of each reconstruction, in this order: all, then layers with their heads.
values weights_kl | awk '{ kl[NR] = $1 } END { half = NR / 2; print (half == 21 && kl[1] > 5 * kl[half + 1] && kl[half + 1] > 0 ? "more bits, less divergence" : "no") }'
values gap_db | awk '{ if ($1 < 0) low = 1 } END { print NR " gaps, " (low ? "some below" : "none below") " the bound" }'
refused eval-recon data/demo.h5 q2-kv.h5 --bound
refused eval-recon data/demo.h5 q2-kv.h5 --top 8
refused eval-recon data/kv.h5 data/kv.h5 --attention
