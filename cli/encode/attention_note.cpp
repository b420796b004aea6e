#include "cli/encode/attention_note.hpp"

#include <algorithm>

#include "cli/codecs/coding.hpp"
#include "cli/search/attention_judge.hpp"
#include "lib/core/checked.hpp"

namespace kvcodec::cli {
namespace {

/// The KL of attention's weights, in nats and the mean of judged layers, above which a note says so. SmolLM2-135M and
/// Qwen2.5-Coder-0.5B lost 0.03 nats per token and more there (Pride and Prejudice); codecs as they come reach 0.25.
constexpr double kFar = 0.3;

constexpr size_t kQueries = 16;

/// Layers, at even distances, that are judged: reading them again takes most of the time.
constexpr size_t kLayers = 8;

/// Judged are a document's first and newest tokens, which have most of the weights: of all tokens one in kShare, for a few percent of
/// the time.
constexpr uint64_t kFirst = 16, kShare = 16, kLeast = 128, kMost = 1008;

/// Tokens [first, first + count) of what a layer holds of a document.
struct Stretch {
  uint64_t first = 0, count = 0;
};

std::vector<Stretch> judged_tokens(uint64_t held, uint64_t newest) {
  if (held <= kFirst + newest) return {{0, held}};
  return {{0, kFirst}, {held - newest, newest}};
}

}  // namespace

void note_attention(const KvReader& kv, const std::vector<size_t>& documents, const CodesReader& codes,
                    const Codec& codec, const CommonOptions& common) {
  if (common.quiet) return;
  const Documents &own_documents = kv.documents(), &stored = codes.info().documents;
  // One document is judged: looking for more among many thousands would take longer than coding them.
  const std::vector<uint64_t> rows = StoredQueries::rows_in(kv);
  if (rows.empty()) return;
  const auto judged = std::ranges::find_if(
      documents, [&](size_t document) { return !StoredQueries(kv, rows, document, 1).empty(); });
  if (judged == documents.end()) return;
  size_t place = 0;
  while (place < stored.count() && (stored.names[place] != own_documents.names[*judged] ||
                                    stored.length(place) != own_documents.length(*judged)))
    ++place;
  if (place == stored.count()) return;
  const StoredQueries queries(kv, rows, *judged, kQueries);
  uint64_t all = 0;
  for (const size_t document : documents) all += own_documents.length(document);
  std::vector<int> far;
  double sum = 0, farthest = 0;
  size_t layers = 0;
  const std::vector<int>& groups = codes.info().groups;
  const size_t judged_groups = std::max<size_t>(1, kLayers / as_size(codes.info().layer_group)),
               step = (groups.size() + judged_groups - 1) / judged_groups;
  for (size_t at = 0; at < groups.size(); at += step) {
    const int group = groups[at];
    const GroupShape shape = codes.info().shape(group, codes.info().sides(group).front());
    const StoredDocument document(codes, codec, shape, place);
    const uint64_t held = own_documents.held(group, *judged),
                   begin = own_documents.offsets[*judged + 1] - held;
    if (held == 0 || shape.width() == 0) continue;
    const auto stretches = judged_tokens(held, std::clamp(all / kShare, kLeast, kMost));
    std::vector<uint64_t> tokens;
    for (const Stretch& stretch : stretches)
      for (uint64_t i = 0; i < stretch.count; ++i) tokens.push_back(begin + stretch.first + i);
    Matrix<float> own(tokens.size(), shape.width()), decoded = own;
    uint64_t row = 0;
    for (const Stretch& stretch : stretches) {
      kv.read(shape, begin + stretch.first, own.view().rows(row, stretch.count));
      document->decode(stretch.first, decoded.view().rows(row, stretch.count));
      row += stretch.count;
    }
    const Matrix<float> values(tokens.size(), as_size(shape.heads()));  // weights do not depend on them
    for (size_t l = 0; l < shape.layers.size(); ++l) {
      const auto keys = shape.columns(own.view(), Side::key, l),
                 other = shape.columns(decoded.view(), Side::key, l);
      const int layer = shape.layers[l];
      const double divergence =
          queries.errors(kv, layer, tokens, {keys, values.view(), other, values.view()}).mean_divergence();
      if (divergence > kFar) far.push_back(layer);
      sum += divergence, farthest = std::max(farthest, divergence);
      ++layers;
    }
  }
  if (sum > kFar * static_cast<double>(layers))
    common.note(
        "{}: in layers {} attention to its codes strays, by a KL of up to {:.2g} nats, so that the model loses much: code "
        "keys more finely, or by what kvcodec choose finds",
        kv.name(), ranges_text(far), farthest);
}

}  // namespace kvcodec::cli
