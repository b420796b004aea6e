// Pages of raw elements without a header: blocks of vLLM's file tier and pages of SGLang (INTEROP.md, "vllm-blocks" and "sglang").
// A layout's name, or the axes themselves, describe where the elements lie.
#include <algorithm>

#include "formats/interop/arrays.hpp"

namespace kvcodec::interop {
namespace {

struct NamedLayout {
  std::string_view format, name;
  const char* axes;
};
/// The layouts of each format, the usual one first.
constexpr NamedLayout kLayouts[] = {{"sglang", "layer-first", "slthd"},
                                    {"sglang", "page-first", "stlhd"},
                                    {"vllm-blocks", "v2-hnd", "lhtsd"},
                                    {"vllm-blocks", "v2-nhd", "lthsd"},
                                    {"vllm-blocks", "separate", "lsthd"}};

std::string axes_named(std::string_view format, const std::string& layout) {
  std::vector<std::string_view> names;
  for (const NamedLayout& known : kLayouts) {
    if (known.format != format) continue;
    if (layout.empty() || layout == known.name) return known.axes;
    names.push_back(known.name);
  }
  if (layout.find('-') != std::string::npos)
    throw usage_error("--layout is '{}'; {} has {}, or name the axes as in {}", layout, format,
                      fmt::join(names, ", "), axes_named(format, ""));
  return layout;
}

ForeignCache open_pages(std::string_view format, const std::vector<std::string>& files,
                        const ImportOptions& options) {
  const std::string layout = axes_named(format, options.layout);
  const Cell cell = options.type.empty() ? Cell::bf16 : cell_from_name(options.type, "--type");
  if (is_block(cell)) throw usage_error("--type is {}; pages have plain elements", name_of(cell));
  const bool latent = layout.find('s') == std::string::npos;
  const ModelInfo model = options.model.value_or(ModelInfo{});
  const int layers = options.layers > 0 ? options.layers : model.num_layers,
            heads = options.heads > 0 ? options.heads : model.num_kv_heads,
            dims = options.head_dim > 0 ? options.head_dim : model.head_dim;
  if (layers <= 0 || heads <= 0 || dims <= 0)
    throw usage_error(
        "raw pages do not say their shape; give --model, or --layer-count, --heads and --head-dim");
  if (latent && (options.latent <= 0 || options.latent > dims))
    throw usage_error(
        "a layout without sides (s) is that of a model with latent attention; name it with --model");
  const uint64_t row[] = {latent ? uint64_t{1} : 2, as_size(layers), as_size(heads), as_size(dims)},
                 token_bytes = checked_mul(checked_product(row), block_of(cell).bytes);
  std::vector<Array> pages;
  uint64_t tokens = 0;
  for (const std::string& file : files) {
    Array page{.bytes = map_file(file), .type = cell, .axes = axes_of(layout, "--layout"), .where = file};
    const uint64_t bytes = page.bytes.bytes.size(),
                   count = options.page_tokens > 0 ? options.page_tokens : bytes / token_bytes;
    if (count == 0 || checked_mul(count, token_bytes) != bytes)
      throw bad_input("{}: has {} bytes; {} tokens of {} bytes each are not such a page", file, bytes, count,
                      token_bytes);
    set_extents(page.axes, {row[0], row[1], row[2], count, row[3]}, "--layout");
    tokens = checked_add(tokens, count);
    pages.push_back(std::move(page));
  }
  const LayerShape shape =
      latent
          ? LayerShape{.heads = heads, .key_dim = dims, .value_dim = options.latent, .values_in_keys = true}
          : usual_layer(heads, dims);
  std::map<int, ArrayLayer> all;
  for (int layer = 0; layer < layers; ++layer)
    for (const Array& page : pages) {
      all[layer].shape = shape;
      all[layer].pieces.push_back({&page, as_size(layer)});
    }
  const std::string name = document_name(files[0]);
  ForeignCache cache =
      cache_in_arrays(all, as_size(layers), options, {files[0], fmt::format("{} {}", format, name), name});
  // The last page may be partly filled: it then has as many tokens as there are ids left for it.
  if (options.ids.size() == 1 && options.ids[0].size() < tokens &&
      options.ids[0].size() > tokens - pages.back().extent('t')) {
    ForeignDocument& document = cache.documents.front();
    document.positions.resize(options.ids[0].size());
    for (auto& [layer, rows] : document.layers) rows.rows = options.ids[0].size();
  }
  cache.model.imported = imported_text({{"format", format},
                                        {"layout", layout},
                                        {"type", name_of(cell)},
                                        {"tokens", pages.front().extent('t')}});
  return cache;
}

ExportResult write_pages(std::string_view format, const CacheSource& source, const ExportJob& job,
                         uint64_t usual_tokens) {
  const uint64_t tokens = source.documents().length(only_counted_document(source, job, "a folder of pages"));
  const Imported before(source, format);
  only_shape(source, true, "pages have one shape");
  const Cell cell = cell_or(source.dtype(), before.text(job.options.key_type, "type"));
  if (is_block(cell)) throw usage_error("--type is {}; pages have plain elements", name_of(cell));
  const uint64_t page = job.options.page_tokens > 0
                            ? job.options.page_tokens
                            : std::max<uint64_t>(1, before.number("tokens", usual_tokens, INT32_MAX));
  ExportResult result = write_chunks(source, job, tokens,
                                     {.type = cell,
                                      .layout = axes_named(format, before.text(job.options.layout, "layout")),
                                      .option = "--layout",
                                      .layers = source.layers().size(),
                                      .tokens = page,
                                      .fills_last = true,
                                      .names = {"{0:06}.bin"}});
  if (tokens % page != 0)
    result.notes.push_back(
        fmt::format("the last page holds {} of {} tokens and zeros behind them", tokens % page, page));
  result.notes.push_back(
      "the program finds pages by their names, which hold hashes of token ids: rename the files to these");
  return result;
}

/// The two programs, and the tokens of their usual pages.
struct Program {
  std::string_view name, summary;
  uint64_t page;
};
constexpr Program kVllm{"vllm-blocks", "raw blocks of vLLM's file tier", 16},
    kSglang{"sglang", "raw pages of SGLang", 64};

template <const Program& kProgram>
ForeignFormat pages_format() {
  return {.name = kProgram.name,
          .summary = kProgram.summary,
          .open = [](const auto& files,
                     const auto& options) { return open_pages(kProgram.name, files, options); },
          .write = [](const auto& source,
                      const auto& job) { return write_pages(kProgram.name, source, job, kProgram.page); },
          .import_options = {"heads", "head-dim", "layer-count", "layout", "type", "page", "key-pairs"},
          .export_options = {"type", "page", "layout", "key-pairs"},
          .writes_folder = true,
          .pairs = PairRule::of_weights};
}

}  // namespace

ForeignFormat vllm_blocks_format() { return pages_format<kVllm>(); }
ForeignFormat sglang_format() { return pages_format<kSglang>(); }

}  // namespace kvcodec::interop
