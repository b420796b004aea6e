#include <algorithm>
#include <limits>
#include <vector>

#include "cuda/runtime/runtime.hpp"
#include "cuda/rvq/rvq.cuh"
#include "cuda/rvq/rvq.hpp"
#include "lib/core/rng.hpp"
#include "test/cuda/device_case.hpp"

namespace rvq_launch_test {

using namespace kvcodec;

TEST_CASE("rvq on a device: the kernel gives ids that are some, whatever it is given") {
  NEEDS_DEVICE();
  const uint64_t seed = 35;
  Rng rng(seed);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const float factor : {1.0f, 1e19f, 1e25f, 1e37f, nan}) {
    INFO("factor ", factor);
    Codebooks books(2, 70, 32);
    for (size_t s = 0; s < 2; ++s)
      for (size_t e = 0; e < 70; ++e)
        for (float& value : books.stage(s).row(e)) value = static_cast<float>(rng.normal()) * factor;
    std::vector<float> rows(70 * 32);
    for (float& value : rows) value = static_cast<float>(rng.normal()) * factor;
    std::fill_n(rows.begin() + 3 * 32, 32, nan);
    const cuda::ResidualQuantizer quantizer(books);
    const cuda::Stream stream;
    cuda::DeviceBuffer<float> residuals(rows, stream);
    cuda::DeviceBuffer<uint32_t> found(70 * 2);
    std::vector<uint32_t> ids(found.size(), ~0u);
    cuda::check(cuda::run_rvq_encode(quantizer.books(), residuals.data(), 70, found.data(), stream.handle()),
                "searching codebooks");
    found.download(ids, stream);
    stream.synchronize();
    CHECK(std::ranges::all_of(ids, [](uint32_t id) { return id < 70; }));
  }
}

}  // namespace rvq_launch_test
