#include "cuda/kmeans.hpp"
#include "cuda/stub.hpp"

std::vector<kvcodec::Clustering> kvcodec::cuda::kmeans(std::span<const KmeansTask>, const KmeansOptions&,
                                                       const Progress&) {
  throw built_without_cuda("k-means");
}
