#include "lib/pipeline/coded_document.hpp"

#include <algorithm>

#include "lib/codec/model_layers.hpp"
#include "lib/core/bits.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/parallel.hpp"
#include "lib/metrics/rate.hpp"

namespace kvcodec {

double StoredBits::bits_per_value(uint64_t book_bytes) const {
  return bits_over_values(values, checked_add(bits(), checked_mul(book_bytes, 8)));
}

uint64_t stream_bits(const StreamSpec& spec, uint64_t bytes) {
  const uint64_t elements = bytes / size_of(spec.type);
  return spec.index_bound > 0 ? elements * index_bits(spec.index_bound) : bytes * 8;
}

CodedLayout::CodedLayout(const Codec& codec, const ModelConfig& config, DType dtype)
    : codec_(&codec), config_(&config), dtype_(dtype), parts_of_layer_(as_size(config.num_layers)) {
  const std::vector<LayerShape> layers = layer_shapes_of(config);
  for (int layer = 0; layer < config.num_layers; ++layer) {
    const LayerShape own =
        layers.empty() ? usual_layer(config.num_kv_heads, config.head_dim) : layers[as_size(layer)];
    const std::vector<int> group = codec.group_of(layer);
    if (group.back() >= config.num_layers)
      throw usage_error("a codec of groups of {} layers for a model of {}", group.size(), config.num_layers);
    for (const Side side : codec.sides())
      if (const GroupShape shape{group, own, side}; group.front() == layer && shape.width() > 0) {
        for (const int of_group : group) parts_of_layer_[as_size(of_group)].push_back(shapes_.size());
        shapes_.push_back(shape);
      }
  }
}

Matrix<float> CodedLayout::rows_of(const LayerRows& rows, const GroupShape& shape, size_t first,
                                   size_t end) const {
  Matrix<float> out(end - first, shape.width());
  for_each_layer(shape, out, [&](Side side, size_t layer, MatrixView<float> to) {
    const Matrix<float>& from = rows.of(side)[layer];
    for (size_t t = 0; t < to.rows(); ++t) {
      std::ranges::copy(from.row(first + t), to.row(t).begin());
      round(to.row(t));
    }
  });
  return out;
}

void CodedLayout::round(std::span<float> values) const {
  if (dtype_ == DType::f32) return;
  std::vector<uint16_t> halves(values.size());
  narrow(dtype_, values, halves);
  widen(dtype_, halves, values);
}

DocumentRows surveyed_rows(const Codec& codec, const Prefix& prefix, const GroupShape& shape,
                           MatrixView<const float> rows, size_t first) {
  DocumentRows result(rows);
  if (!codec.wants_queries()) return result;
  const auto& tokens = prefix.query_tokens;
  const auto begin = static_cast<size_t>(std::ranges::lower_bound(tokens, uint64_t{first}) - tokens.begin());
  for (size_t i = begin; i < tokens.size(); ++i) result.query_tokens.push_back(tokens[i] - first);
  if (begin < tokens.size())
    result.queries = prefix.queries[as_size(shape.first_layer())].view().rows(begin, tokens.size() - begin);
  return result;
}

CodedDocument::CodedDocument(const CodedLayout& layout, const std::vector<uint32_t>& token_ids,
                             std::vector<size_t> left_out)
    : layout_(layout), left_out_(std::move(left_out)), values_(layout.parts()), decoded_(layout.parts()) {
  for (size_t part = 0; part < layout.parts(); ++part) {
    const GroupShape& shape = layout.shape(part);
    encoded_.emplace_back(layout.codec().streams(shape));
    stores_.push_back(&encoded_.back().add_document(token_ids));
    views_.push_back(layout.codec().open(shape, *stores_.back()));
    if (shape.side == Side::key && shape.layer.values_in_keys)
      values_[part] = values_in(*views_.back(), *stores_.back(), shape.layer.value_dim);
  }
}

void CodedDocument::encode(const Prefix& prefix, std::span<const Shared> shared,
                           std::span<const float> weights) {
  const Codec& codec = layout_.codec();
  parallel_each(layout_.parts(), 1, [&](size_t part) {
    const GroupShape shape = layout_.shape(part);
    const size_t first = left_out_[part], end = prefix.rows.keys.front().rows();
    for (const auto& [name, bytes] : shared[part]) stores_[part]->append(name, bytes);
    const Matrix<float> rows = layout_.rows_of(prefix.rows, shape, first, end);
    if (codec.survey_scope(shape) == SurveyScope::document) {
      const Matrix<float> surveyed = layout_.rows_of(prefix.rows, codec.surveyed(shape), first, end);
      const DocumentRows document = surveyed_rows(codec, prefix, shape, surveyed, first);
      run_survey(*codec.survey(shape), {&document, 1}, *stores_[part]);
    }
    if (!weights.empty()) stores_[part]->weigh_tokens({weights.begin() + first, weights.end()});
    codec.append(shape, rows, *stores_[part]);
    refresh(part);
  });
}

void CodedDocument::copy(size_t part, const StreamReader& from) {
  for (const StreamSpec& spec : encoded_[part].specs()) {
    const uint64_t rows = from.rows(spec.name);
    std::vector<std::byte> bytes(checked_mul(rows, spec.row_bytes()));
    from.read(spec.name, 0, rows, bytes);
    stores_[part]->append(spec.name, bytes);
  }
  refresh(part);
}

void CodedDocument::append(const LayerRows& rows, size_t first, size_t end, std::span<const uint32_t> ids) {
  parallel_each(layout_.parts(), 1, [&](size_t part) {
    stores_[part]->add_token_ids(ids);
    const GroupShape shape = layout_.shape(part);
    layout_.codec().append(shape, layout_.rows_of(rows, shape, first, end), *stores_[part]);
    refresh(part);
  });
}

void CodedDocument::read(int layer, MatrixView<float> keys, MatrixView<float> values) {
  const std::span<const size_t> parts = layout_.parts_of(layer);
  const size_t left_out = left_out_[parts.front()], there = keys.rows() - left_out;
  parallel_each(parts.size(), 1, [&](size_t i) {
    const GroupShape& shape = layout_.shape(parts[i]);
    Matrix<float>& rows = decoded_[parts[i]];
    if (layer != shape.first_layer() && rows.rows() == there) return;
    rows = Matrix<float>(there, shape.width());
    views_[parts[i]]->decode(0, rows);
  });
  for (const size_t part : parts) {
    CodedLayout::for_each_layer(layout_.shape(part), decoded_[part],
                                [&](Side side, size_t of_layer, MatrixView<float> from) {
                                  if (of_layer != as_size(layer)) return;
                                  const MatrixView<float>& to = side == Side::key ? keys : values;
                                  for (size_t t = 0; t < left_out; ++t) std::ranges::fill(to.row(t), 0.0f);
                                  for (size_t t = 0; t < there; ++t) {
                                    std::ranges::copy(from.row(t), to.row(left_out + t).begin());
                                    layout_.round(to.row(left_out + t));
                                  }
                                });
    if (layer == layout_.shape(part).layers.back()) decoded_[part] = {};
  }
}

void CodedDocument::multiply(Side side, int layer, uint64_t first, MatrixView<const float> factors,
                             MatrixView<float> out) const {
  const std::span<const size_t> parts = layout_.parts_of(layer);
  const bool keys = side == Side::key;
  const size_t part = keys ? parts.front() : parts.back(), count = keys ? out.cols() : factors.cols(),
               missing = left_out_[part] > first ? std::min<size_t>(count, left_out_[part] - first) : 0;
  if (keys || missing == count)
    for (size_t i = 0; i < out.rows(); ++i)
      std::ranges::fill(keys ? out.row(i).first(missing) : out.row(i), 0.0f);
  if (missing == count) return;
  const uint64_t from = first + missing - left_out_[part];
  const DocumentView& view = !keys && values_[part] ? *values_[part] : *views_[part];
  if (keys)
    view.multiply(from, factors, out.columns(missing, count - missing));
  else
    view.multiply(from, factors.columns(missing, count - missing), out);
}

StoredBits CodedDocument::stored(uint64_t tokens) const {
  StoredBits result;
  for (size_t part = 0; part < layout_.parts(); ++part)
    result.values += (tokens - left_out_[part]) * layout_.shape(part).width();
  for (const Encoded& encoded : encoded_)
    for (const StreamSpec& spec : encoded.specs())
      if (!spec.shared)
        result.category[static_cast<size_t>(spec.category)] +=
            stream_bits(spec, encoded.bytes(spec.name).size());
  // Vectors that are predicted from ids cannot be decoded without them.
  if (const uint64_t ids = layout_.codec().predicts_from(); ids > 0)
    result.category[static_cast<size_t>(Category::ids)] += tokens * index_bits(ids);
  return result;
}

}  // namespace kvcodec
