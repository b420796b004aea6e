// Layers as vLLM's shared storage connector keeps them (INTEROP.md, "vllm"): a folder with a safetensors file per layer.
#include <algorithm>
#include <charconv>
#include <filesystem>

#include "formats/interop/arrays.hpp"
#include "formats/interop/foreign.hpp"
#include "formats/interop/imported.hpp"
#include "formats/interop/layer_names.hpp"
#include "formats/interop/tensors.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::interop {
namespace {

constexpr const char* kTensor = "kv_cache";
constexpr uint64_t kUsualBlock = 16;

/// Of "model.layers.12.self_attn.attn.safetensors": the number behind "layers.", or the first one.
int layer_in(const std::string& file) {
  const std::string name = std::filesystem::path(file).filename().string();
  size_t at = name.find("layers.");
  at = at == std::string::npos ? name.find_first_of("0123456789") : at + 7;
  int layer = -1;
  if (at != std::string::npos) std::from_chars(name.data() + at, name.data() + name.size(), layer);
  if (layer < 0 || layer >= kMostLayers)
    throw bad_input(
        "{}: its name does not say which layer it is of, as model.layers.0.self_attn.attn.safetensors does",
        file);
  return layer;
}

/// The name of an exported layer.
std::string layer_file(uint64_t layer) {
  return fmt::format("model.layers.{}.self_attn.attn.safetensors", layer);
}

/// [2, tokens, heads * dimensions], [2, tokens, heads, dimensions], or of latent attention [tokens, dimensions].
Array open_layer(const std::string& name) {
  const TensorFile file(name);
  const auto tensor = file.need(kTensor);
  const size_t rank = tensor.shape.size();
  if (rank < 2 || rank > 4 || (rank > 2 && tensor.shape[0] != 2))
    throw bad_input("{}: shape is [{}]; keys and values, tokens, and the values of all heads are wanted",
                    tensor.origin, fmt::join(tensor.shape, ", "));
  Array array{.bytes = file.bytes_of(tensor),
              .type = need_cell(tensor),
              .begin = 0,
              .axes = axes_of(rank == 2   ? "td"
                              : rank == 3 ? "std"
                                          : "sthd",
                              "layout"),
              .where = tensor.origin};
  with_context(array.where, [&] { array.set_shape(tensor.shape); });
  return array;
}

bool is_vllm(const std::string& file) {
  return is_tensor_file(file, [](const TensorFile& tensors) { return tensors->stored(kTensor).has_value(); });
}

ForeignCache open_vllm(const std::vector<std::string>& files, const ImportOptions& options) {
  std::map<int, Array> layers;
  for (const std::string& file : files)
    if (!layers.emplace(layer_in(file), open_layer(file)).second)
      throw bad_input("{}: layer {} is there twice", file, layer_in(file));
  ForeignCache cache;
  std::vector<LayerShape> shapes(as_size(options.model
                                             ? std::max(options.model->num_layers, layers.rbegin()->first + 1)
                                             : layers.rbegin()->first + 1));
  ForeignDocument document{.name = document_name(std::filesystem::absolute(files[0]).parent_path().string())};
  if (document.name.empty()) document.name = document_name(files[0]);
  std::optional<DType> type;
  for (const auto& [layer, array] : layers) {
    const LayerShape shape = shapes[as_size(layer)] =
        array.has('s') ? heads_in(array.extent('h'), array.extent('d'), options, array.where)
                       : latent_layer(array.extent('d'), options, array.where);
    type = wider(type, dtype_of(array.type));
    document.layers.emplace(layer, layer_of({{&array, 0, 0, Side::both}}, shape));
    document.positions =
        first_positions(std::max<uint64_t>(document.positions.size(), document.layers.at(layer).rows));
  }
  cache.dtype = *type;
  cache.model = with_context(files[0], [&] {
    return model_of(std::move(shapes), options, "vLLM shared storage " + document.name, cache.notes);
  });
  cache.model.imported = imported_text({{"format", "vllm"}, {"type", name_of(layers.begin()->second.type)}});
  cache.documents.push_back(std::move(document));
  return cache;
}

ExportResult write_vllm(const CacheSource& source, const ExportJob& job) {
  const size_t document = only_document(source, job, "a folder of vLLM's shared storage");
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
  TargetFolder folder(job, [](const std::string& name) {
    const auto numbers = numbers_in(name);
    return numbers.size() == 1 && name == layer_file(numbers[0]);
  });
  ExportResult result;
  for (const int layer : source.layers()) {
    const LayerShape shape = source.model().layer_shape(layer);
    const uint64_t row = as_size(shape.heads) * as_size(shape.key_dim);
    std::vector<uint64_t> extents{2, tokens, row};
    if (shape.values_in_keys) extents.erase(extents.begin());
    TensorPlan plan;
    plan.add(kTensor, dtype_of_cell(cell, "--type"), extents,
             checked_mul(checked_product(extents), block_of(cell).bytes));
    TargetFile file(folder.place_of(layer_file(as_size(layer))), false);
    plan.write_header(file);
    const Axis axes[] = {{'s', 2}, {'t', tokens}, {'d', row}};
    for (const Side side : kSides) {
      if (shape.stored_dim(side) == 0) continue;
      const Plane plane = plane_in_array(cell, plan.begin(0), axes, {.side = side});
      for_each_piece(source, job, side, layer, document, [&](uint64_t first, MatrixView<float> rows) {
        if (first < tokens)
          file.write(plane, first,
                     rows.rows(0, static_cast<size_t>(std::min<uint64_t>(rows.rows(), tokens - first))));
      });
    }
    result.bytes += file.commit();
  }
  result.files = folder.commit();
  if (tokens < all)
    result.notes.push_back(
        fmt::format("the last {} tokens do not fill a block of {} and are left out", all - tokens, block));
  return result;
}

}  // namespace

ForeignFormat vllm_format() {
  return {.name = "vllm",
          .summary = "layers of vLLM's shared storage, safetensors",
          .recognise = is_vllm,
          .open = open_vllm,
          .write = write_vllm,
          .import_options = {"heads", "head-dim"},
          .export_options = {"type", "page"},
          .writes_folder = true};
}

}  // namespace kvcodec::interop
