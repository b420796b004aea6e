// The beginning of cases that run a model on a device.
#pragma once

#include <string>

#include "cuda/prefill/prefill.hpp"
#include "lib/core/error.hpp"
#include "lib/model/llama.hpp"
#include "test/cuda/device_case.hpp"
#include "test/lib/model/naive_llama.hpp"

/// Like NEEDS_DEVICE, for a device with matrix products.
#define NEEDS_PRODUCTS() \
  NEEDS_DEVICE();        \
  if (const std::string why = ::kvcodec::test::why_no_products(); !why.empty()) SKIP(why)

namespace kvcodec::test {

/// The reason why this machine, or this build, has no matrix products; std::nullopt if it has.
inline std::string why_no_products() {
  const ModelConfig config = make_config(1, 2, 1, 1, 1, 2);
  const WeightsInMemory weights = random_weights(config, DType::bf16, 1);
  const LlamaModel model(config, weights);
  try {
    (void)cuda::make_prefill_engine(device(), model.weights());
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::no_device) return error.what();
    throw;
  }
  return "";
}

}  // namespace kvcodec::test
