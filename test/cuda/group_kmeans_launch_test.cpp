#include <cmath>
#include <vector>

#include "cuda/runtime/runtime.hpp"
#include "cuda/selfindex/group_kmeans.cuh"
#include "lib/core/rng.hpp"
#include "test/cuda/device_case.hpp"

using namespace kvcodec;

TEST_CASE("device: rounds of k-means of small groups") {
  NEEDS_DEVICE();
  const uint64_t seed = 81;
  INFO("seed ", seed);
  Rng rng(seed);
  for (const size_t tokens : {1, 5, 2048, 2500}) {
    const cuda::GroupShape shape{tokens, 32};
    const Matrix<float> rows = test::random_rows(rng, tokens, 128),
                        starts = test::random_rows(rng, 32 * cuda::kGroupEntries, cuda::kGroupDims);
    const cuda::Stream stream;
    const cuda::DeviceBuffer<float> device_rows({rows.data(), rows.size()}, stream);
    cuda::DeviceBuffer<float> entries({starts.data(), starts.size()}, stream), sums(shape.sums());
    for (int round = 0; round < 2; ++round)
      cuda::check(
          cuda::run_group_round(shape, device_rows.data(), entries.data(), sums.data(), stream.handle()),
          "a round");
    std::vector<float> found(entries.size());
    entries.download(found, stream);
    stream.synchronize();

    Matrix<double> expected(starts.rows(), 4);
    for (size_t i = 0; i < starts.size(); ++i) expected.data()[i] = starts.data()[i];
    for (int round = 0; round < 2; ++round) {
      Matrix<double> next(starts.rows(), 5);
      for (size_t token = 0; token < tokens; ++token)
        for (size_t group = 0; group < 32; ++group) {
          size_t best = 0;
          double least = INFINITY;
          for (size_t e = group * 16; e < group * 16 + 16; ++e) {
            double distance = 0;
            for (size_t i = 0; i < 4; ++i)
              distance += std::pow(double{rows(token, group * 4 + i)} - expected(e, i), 2);
            if (distance < least) least = distance, best = e;
          }
          for (size_t i = 0; i < 4; ++i) next(best, i) += double{rows(token, group * 4 + i)};
          next(best, 4) += 1;
        }
      for (size_t e = 0; e < next.rows(); ++e)
        for (size_t i = 0; i < 4 && next(e, 4) > 0; ++i) expected(e, i) = next(e, i) / next(e, 4);
    }
    // Sums of up to 2048 floats near 1; no token of this seed is as near to two entries.
    double worst = 0;
    for (size_t i = 0; i < found.size(); ++i)
      worst = std::max(worst, std::abs(found[i] - expected.data()[i]));
    CHECK(worst < 2e-5);
  }
}
