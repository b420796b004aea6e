# The experiment cluster-recall, over few budgets and methods, on a small cache.
set -e
for tool in make jq; do
  command -v $tool >/dev/null || {
    echo "there is no $tool"
    exit 77
  }
done
make -s -C src/data/experiments cluster-recall KVCODEC=kvcodec RECALL_KV="$DATA/demo.h5" OUT="$PWD/out" BUDGETS="16 32" SINK=4 \
  INDEXES="cosine-4 cosine-16 ip-16" METHODS="clusters-cosine-4 clusters-cosine-16 clusters-ip-16 quest codes oracle"
