#include "formats/interop/formats.hpp"

#include <algorithm>

#include "formats/mapped_file.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::interop {
namespace {

/// Raw bytes look like anything.
bool never(const std::string&) { return false; }

std::vector<std::string_view> names() {
  std::vector<std::string_view> all;
  for (const ForeignFormat& format : foreign_formats()) all.push_back(format.name);
  return all;
}

}  // namespace

const std::vector<ForeignFormat>& foreign_formats() {
  // mlx-lm before transformers: both are safetensors, of which mlx-lm's name their cache classes.
  static const std::vector<ForeignFormat> formats = {
      {"transformers", "tensors of a DynamicCache, safetensors", is_transformers, open_transformers,
       write_transformers},
      {"mlx", "prompt cache of mlx-lm, safetensors", is_mlx, open_mlx, write_mlx},
      {"llama", "sequence or session state of llama.cpp", is_llama, open_llama, write_llama},
      {"lmcache", "chunks of LMCache with their header, .data", is_lmcache, open_lmcache, write_lmcache,
       true},
      {"vllm", "layers of vLLM's shared storage, safetensors", is_vllm, open_vllm, write_vllm, true},
      {"vllm-blocks", "raw blocks of vLLM's file tier", never, open_vllm_blocks, write_vllm_blocks, true},
      {"sglang", "raw pages of SGLang", never, open_sglang, write_sglang, true},
      {"numpy", "arrays of NumPy, .npy and .npz", is_numpy, open_numpy, write_numpy}};
  return formats;
}

const ForeignFormat& foreign_format(std::string_view name) {
  for (const ForeignFormat& format : foreign_formats())
    if (format.name == name) return format;
  throw usage_error("there is no format '{}'; choose from {}", name, fmt::join(names(), ", "));
}

const ForeignFormat& guess_format(const std::string& file) {
  for (const ForeignFormat& format : foreign_formats())
    if (format.recognise(file)) return format;
  const MappedFile readable(file);  // says why it is not
  throw usage_error("{}: what is in it does not say its format; name it with --from: {}", file,
                    fmt::join(names(), ", "));
}

}  // namespace kvcodec::interop
