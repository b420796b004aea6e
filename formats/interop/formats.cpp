#include "formats/interop/formats.hpp"

#include <algorithm>

#include "formats/io/mapped_file.hpp"
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
  static const std::vector<std::string_view> kRawPages = {"heads",  "head-dim", "layer-count",
                                                          "layout", "type",     "page"};
  static const std::vector<ForeignFormat> formats = {
      {.name = "transformers",
       .summary = "tensors of a DynamicCache, safetensors",
       .recognise = is_transformers,
       .open = open_transformers,
       .write = write_transformers,
       .import_options = {},
       .export_options = {"type"}},
      {.name = "mlx",
       .summary = "prompt cache of mlx-lm, safetensors",
       .recognise = is_mlx,
       .open = open_mlx,
       .write = write_mlx,
       .import_options = {},
       .export_options = {"type", "version", "bits", "group"}},
      {.name = "llama",
       .summary = "sequence or session state of llama.cpp",
       .recognise = is_llama,
       .open = open_llama,
       .write = write_llama,
       .import_options = {"heads", "head-dim", "rotated", "window-layers"},
       .export_options = {"type", "value-type", "kind", "version", "transposed", "rotated", "window-layers"}},
      {.name = "lmcache",
       .summary = "chunks of LMCache with their header, .data",
       .recognise = is_lmcache,
       .open = open_lmcache,
       .write = write_lmcache,
       .import_options = {"heads", "head-dim", "layer-count"},
       .export_options = {"type", "kind", "page"},
       .writes_folder = true},
      {.name = "vllm",
       .summary = "layers of vLLM's shared storage, safetensors",
       .recognise = is_vllm,
       .open = open_vllm,
       .write = write_vllm,
       .import_options = {"heads", "head-dim"},
       .export_options = {"type", "page"},
       .writes_folder = true},
      {.name = "vllm-blocks",
       .summary = "raw blocks of vLLM's file tier",
       .recognise = never,
       .open = open_vllm_blocks,
       .write = write_vllm_blocks,
       .import_options = kRawPages,
       .export_options = {"type", "page", "layout"},
       .writes_folder = true},
      {.name = "sglang",
       .summary = "raw pages of SGLang",
       .recognise = never,
       .open = open_sglang,
       .write = write_sglang,
       .import_options = kRawPages,
       .export_options = {"type", "page", "layout"},
       .writes_folder = true},
      {.name = "numpy",
       .summary = "arrays of NumPy, .npy and .npz",
       .recognise = is_numpy,
       .open = open_numpy,
       .write = write_numpy,
       .import_options = {"heads", "head-dim", "layout", "type"},
       .export_options = {"type", "layout"}}};
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
