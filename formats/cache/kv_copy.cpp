// Documents of kv files in another one.
#include <algorithm>
#include <optional>

#include "formats/cache/document_copy_io.hpp"
#include "formats/cache/kv_file.hpp"
#include "lib/core/view.hpp"

namespace kvcodec {
namespace {

/// Bytes of rows that are copied at a time: several chunks of a dataset.
constexpr uint64_t kRowsBytes = uint64_t{8} << 20;

/// What all files that are joined have alike, and the documents of all of them.
struct KvForm {
  ModelInfo model;        // what all say of it
  ModelInfo first_model;  // what files are held against, in whichever order they are read again
  DType dtype{};
  std::vector<int> layers;
  std::optional<bool> has_tokens;
  std::optional<std::vector<int>> query_layers;
  std::optional<DType> query_dtype;  // f32, which holds all of them, where files differ
  Documents documents;

  void add(const std::string& first, const KvReader& kv, std::span<const size_t> numbers) {
    if (layers.empty()) {
      model = first_model = kv.model(), dtype = kv.dtype(), layers = kv.layers();
    } else {
      check_alike(first, kv);
      merge_model(model, kv.model());
    }
    const uint64_t before = documents.tokens();
    add_documents(documents, kv.documents(), numbers);
    if (documents.tokens() > before) add_kind(first, kv);
  }

  void check_alike(const std::string& first, const KvReader& kv) const {
    const Alike alike(first, kv.name());
    check_same_model(kv.name(), kv.model(), first, first_model);
    alike.expect("its element type", name_of(dtype), name_of(kv.dtype()));
    alike.expect("the list of its layers", fmt::format("{}", fmt::join(layers, ",")),
                 fmt::format("{}", fmt::join(kv.layers(), ",")));
  }

 private:
  /// Whether there are ids, and queries: of files that give tokens.
  void add_kind(const std::string& first, const KvReader& kv) {
    const Alike alike(first, kv.name());
    if (has_tokens) alike.expect_there("the dataset of token ids", *has_tokens, kv.has_tokens());
    has_tokens = kv.has_tokens();
    // Also where no token of these documents asks: others that were dumped with them have queries.
    const std::vector<int>& with_queries = kv.query_layers();
    if (!with_queries.empty() && with_queries != kv.layers())
      throw bad_input(
          "{}: has queries of the layers {} only; documents can be copied with those of all layers",
          kv.name(), fmt::join(with_queries, ","));
    if (query_layers)
      alike.expect("the list of its layers with queries", fmt::format("'{}'", fmt::join(*query_layers, ",")),
                   fmt::format("'{}'", fmt::join(with_queries, ",")));
    query_layers = with_queries;
    if (const auto other = kv.query_dtype())
      query_dtype = query_dtype.value_or(*other) == *other ? *other : DType::f32;
  }
};

/// Copies documents of one file behind what was written before.
class Copier {
 public:
  Copier(const KvReader& kv, std::span<const size_t> numbers, KvWriter& writer)
      : kv_(kv), numbers_(numbers), writer_(writer) {}

  void run(uint64_t tokens_before, bool queries) {
    for (const size_t number : numbers_) {
      const Documents& documents = kv_.documents();
      const uint64_t first = documents.offsets[number], count = documents.length(number);
      writer_.add_document(documents.names[number],
                           kv_.has_tokens() ? kv_.tokens(first, count) : std::vector<uint32_t>(),
                           kv_.positions(first, count),
                           documents.whole() ? std::span<const uint64_t>() : documents.left_out[number],
                           documents.facts_of(number));
    }
    for (const int layer : kv_.layers())
      for (const Side side : kSides)
        if (const size_t width = kv_.model().layer_shape(layer).width(side); width > 0)
          copy_side(side, layer, width);
    if (queries) copy_queries(tokens_before);
  }

 private:
  void copy_side(Side side, int layer, size_t width) {
    const size_t most = std::max<size_t>(1, kRowsBytes / (width * sizeof(float)));
    Matrix<float> rows(most, width);
    for (const auto& [begin, end] : runs(layer))
      for (uint64_t first = begin; first < end; first += most) {
        const auto piece = rows.view().rows(0, static_cast<size_t>(std::min<uint64_t>(most, end - first)));
        kv_.read(side, layer, first, piece);
        writer_.append(side, layer, piece);
      }
  }

  /// Tokens of the documents that the layer holds, those together that lie in one piece.
  std::vector<std::pair<uint64_t, uint64_t>> runs(int layer) const {
    const Documents& documents = kv_.documents();
    std::vector<std::pair<uint64_t, uint64_t>> runs;
    for (const size_t number : numbers_) {
      const uint64_t begin = documents.offsets[number] + documents.left_out_of(layer, number),
                     end = documents.offsets[number + 1];
      if (!runs.empty() && runs.back().second == begin && documents.whole())
        runs.back().second = end;
      else
        runs.emplace_back(begin, end);
    }
    return runs;
  }

  /// The queries of the documents' tokens, in the order of the documents.
  void copy_queries(uint64_t tokens_before) {
    const auto rows = kv_.query_token_rows(0, kv_.query_tokens());
    const Documents& documents = kv_.documents();
    for (const size_t number : numbers_) {
      const uint64_t begin = documents.offsets[number];
      const auto first = std::ranges::lower_bound(rows, begin),
                 end = std::ranges::lower_bound(rows, documents.offsets[number + 1]);
      std::vector<uint64_t> places(first, end);
      for (uint64_t& place : places) place = tokens_before + place - begin;
      for (const int layer : kv_.layers())
        copy_queries_of(layer, static_cast<uint64_t>(first - rows.begin()), places);
      tokens_before += documents.length(number);
    }
  }

  /// places: in the new file, of the tokens that the queries from `first_query` on belong to.
  void copy_queries_of(int layer, uint64_t first_query, std::span<const uint64_t> places) {
    const size_t width = static_cast<size_t>(kv_.model().num_q_heads) *
                         static_cast<size_t>(kv_.model().layer_shape(layer).key_dim);
    const size_t most = std::max<size_t>(1, kRowsBytes / (width * sizeof(float)));
    Matrix<float> rows(std::min(most, places.size()), width);
    for (size_t i = 0; i < places.size(); i += most) {
      const auto piece = rows.view().rows(0, std::min(most, places.size() - i));
      kv_.read_queries(layer, first_query + i, piece);
      writer_.append_queries(layer, places.subspan(i, piece.rows()), piece);
    }
  }

  const KvReader& kv_;
  std::span<const size_t> numbers_;
  KvWriter& writer_;
};

}  // namespace

DocumentList list_kv_documents(const KvReader& kv) {
  DocumentList list{.type = kv.type(), .model = kv.model(), .documents = kv.documents()};
  const size_t count = list.documents.count();
  list.values.resize(count), list.bytes.resize(count);
  for (size_t i = 0; i < count; ++i) {
    for (const int layer : kv.layers())
      list.values[i] += list.documents.held(layer, i) * kv.model().layer_shape(layer).width();
    list.bytes[i] = list.values[i] * size_of(kv.dtype());
  }
  return list;
}

void copy_kv_documents(std::span<const DocumentsOf> from, std::span<const DocumentList> lists,
                       const Opener<KvReader>& open, OutputFile& output, const Provenance& provenance) {
  const std::string& first = from.front().file;
  KvForm form;
  for_each_file<KvReader>(from, lists, open,
                          [&](size_t i, const KvReader& kv) { form.add(first, kv, from[i].numbers); });
  KvWriter writer(output, form.model, form.dtype, form.layers, form.query_dtype);
  writer.expect(form.documents);
  size_t document = 0;
  for_each_file<KvReader>(from, lists, open, [&](size_t i, const KvReader& kv) {
    form.check_alike(first, kv);
    Copier(kv, from[i].numbers, writer).run(form.documents.offsets[document], form.query_dtype.has_value());
    document += from[i].numbers.size();
  });
  writer.finish(provenance);
}

}  // namespace kvcodec
