#include <algorithm>

#include "formats/interop/foreign.hpp"
#include "formats/io/mapped_file.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::interop {
namespace {

std::vector<std::string_view> names() {
  std::vector<std::string_view> all;
  for (const ForeignFormat& format : foreign_formats()) all.push_back(format.name);
  return all;
}

}  // namespace

ForeignFormat transformers_format(), mlx_format(), llama_format(), lmcache_format(), vllm_format(),
    vllm_blocks_format(), sglang_format(), numpy_format();

const std::vector<ForeignFormat>& foreign_formats() {
  static const std::vector<ForeignFormat> formats = {
      transformers_format(), mlx_format(),         llama_format(),  lmcache_format(),
      vllm_format(),         vllm_blocks_format(), sglang_format(), numpy_format()};
  return formats;
}

const ForeignFormat& foreign_format(std::string_view name) {
  for (const ForeignFormat& format : foreign_formats())
    if (format.name == name) return format;
  throw usage_error("there is no format '{}'; choose from {}", name, fmt::join(names(), ", "));
}

const ForeignFormat& guess_format(const std::string& file) {
  for (const ForeignFormat& format : foreign_formats())
    if (format.recognise && format.recognise(file)) return format;
  const MappedFile readable(file);  // says why it is not
  throw usage_error("{}: what is in it does not say its format; name it with --from: {}", file,
                    fmt::join(names(), ", "));
}

}  // namespace kvcodec::interop
