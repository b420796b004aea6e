# The experiment kvcomp-gain, over few steps and settings.
set -e
for tool in make jq; do
  command -v $tool >/dev/null || {
    echo "there is no $tool"
    exit 77
  }
done
make -s -C src/data/experiments kvcomp-gain KVCODEC=kvcodec KV="$DATA/kv.h5" OUT="$PWD/out" STEPS="0.10 0.25 0.40" \
  SETTINGS="16-huffman-own 32-rans-shared 64-auto-error" ERRORS="0.2 0.4 0.8" KIVI_BITS="2 3 4"
