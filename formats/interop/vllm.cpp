// Layers as vLLM's shared storage connector keeps them (INTEROP.md, "vllm"): a folder with a safetensors file per layer.
#include <algorithm>
#include <charconv>
#include <filesystem>

#include "formats/interop/arrays.hpp"

namespace kvcodec::interop {

constexpr const char* kTensor = "kv_cache";

/// The layer of "model.layers.12.self_attn.attn.safetensors": the number behind "layers.", or the first one.
static int layer_in(const std::string& file) {
  const std::string name = std::filesystem::path(file).filename().string();
  size_t at = name.find("layers.");
  at = at == std::string::npos ? name.find_first_of("0123456789") : at + 7;
  int layer = -1;
  if (at != std::string::npos) std::from_chars(name.data() + at, name.data() + name.size(), layer);
  if (layer < 0 || layer >= kMaxLayers)
    throw bad_input(
        "{}: its name does not say which layer it is of, as model.layers.0.self_attn.attn.safetensors does",
        file);
  return layer;
}

/// [2, tokens, heads * dimensions], [2, tokens, heads, dimensions], or of latent attention [tokens, dimensions].
static Array open_layer(const std::string& name) {
  const TensorFile file(name);
  const auto& tensor = file.need(kTensor);
  const size_t rank = tensor.shape.size();
  if (rank < 2 || rank > 4 || (rank > 2 && tensor.shape[0] != 2))
    throw bad_input("{}: shape is [{}]; keys and values, tokens, and the values of all heads are wanted",
                    tensor.origin, fmt::join(tensor.shape, ", "));
  return file.array_of(tensor, rank == 2 ? "td" : rank == 3 ? "std" : "sthd");
}

static ForeignCache open_vllm(const std::vector<std::string>& files, const ImportOptions& options) {
  std::map<int, Array> arrays;
  for (const std::string& file : files)
    if (!arrays.emplace(layer_in(file), open_layer(file)).second)
      throw bad_input("{}: layer {} is there twice", file, layer_in(file));
  std::map<int, ArrayLayer> layers;
  for (const auto& item : arrays) {
    const Array& array = item.second;  // clang 14 cannot capture structured bindings
    const LayerShape shape = with_context(array.where, [&] {
      return array.has('s') ? heads_in(array.extent('h'), array.extent('d'), options)
                            : latent_layer(array.extent('d'), options);
    });
    layers[item.first] = {shape, {{&array}}};
  }
  const int count = std::max(arrays.rbegin()->first + 1, options.model ? options.model->num_layers : 0);
  std::string name = document_name(std::filesystem::absolute(files[0]).parent_path().string());
  if (name.empty()) name = document_name(files[0]);
  ForeignCache cache =
      cache_in_arrays(layers, as_size(count), options, {files[0], "vLLM shared storage " + name, name});
  cache.model.imported = imported_text({{"format", "vllm"}, {"type", name_of(arrays.begin()->second.type)}});
  return cache;
}

static ExportResult write_vllm(const CacheSource& source, const ExportJob& job) {
  constexpr uint64_t kUsualBlock = 16;
  const size_t document = only_counted_document(source, job, "a folder of vLLM's shared storage");
  const Cell cell = cell_or(source.dtype(), Imported(source, "vllm").text(job.options.key_type, "type"));
  const uint64_t block = job.options.page_tokens > 0 ? job.options.page_tokens : kUsualBlock;
  const uint64_t all = source.documents().length(document), tokens = all / block * block;
  if (tokens == 0)
    throw usage_error("{}: its {} tokens are less than a block of {}; --page sets another size",
                      source.name(), all, block);
  for (const int layer : source.layers()) {
    const LayerShape shape = source.model().layer_shape(layer);
    if (leaves_out(source, layer) || (!shape.values_in_keys && shape.key_dim != shape.value_dim))
      throw usage_error("{}: layer {} keeps its last tokens only, or has keys and values of other dimensions",
                        source.name(), layer);
  }
  ExportResult result = write_chunks(
      source, job, tokens,
      {.type = cell,
       .layout = "std",
       .option = "layout",
       .tokens = tokens,
       .names = {"model.layers.{2}.self_attn.attn.safetensors"},
       .write_head = [dtype = dtype_of_cell(cell, "--type")](TargetFile& file, const Array& array) {
         TensorPlan plan;
         plan.add(kTensor, dtype, array.shape(), block_of(array.type).bytes);
         plan.write_header(file);
         return plan.begin(0);
       }});
  if (tokens < all)
    result.notes.push_back(
        fmt::format("the last {} tokens do not fill a block of {} and are left out", all - tokens, block));
  return result;
}

ForeignFormat vllm_format() {
  return {.name = "vllm",
          .summary = "layers of vLLM's shared storage, safetensors",
          .is_of = [](const std::string& file) { return TensorFile(file)->stored(kTensor) != nullptr; },
          .open = open_vllm,
          .write = write_vllm,
          .import_options = {"heads", "head-dim", "key-pairs"},
          .export_options = {"type", "page", "key-pairs"},
          .writes_folder = true,
          .pairs = PairRule::of_weights};
}

}  // namespace kvcodec::interop
