// All content of a file of kvcodec: for programs that damage files and read them again.
#pragma once

#include <string>
#include <vector>

#include "formats/cache/book_file.hpp"
#include "formats/cache/codes_file.hpp"
#include "formats/cache/kv_file.hpp"
#include "formats/results/results.hpp"
#include "lib/core/digest.hpp"

namespace kvcodec::test {
namespace everything {

template <class T, class Allocator>
void add(Digest& digest, const std::vector<T, Allocator>& values) {
  digest.add(uint64_t{values.size()});
  digest.add(std::as_bytes(std::span(values)));
}

inline void add(Digest& digest, MatrixView<const float> rows) {
  for (size_t i = 0; i < rows.rows(); ++i) digest.add(std::as_bytes(rows.row(i)));
}

inline void add(Digest& digest, const Documents& documents) {
  for (size_t i = 0; i < documents.count(); ++i) digest.add(documents.names[i]);
  add(digest, documents.offsets);
  for (const auto& left_out : documents.left_out) add(digest, left_out);
}

inline void add(Digest& digest, const FileType& type, const ModelInfo& model) {
  digest.add(type.type);
  digest.add(static_cast<uint64_t>(type.version));
  digest.add(type.generator);
  digest.add(type.created);
  for (const std::string& line : type.history) digest.add(line);
  for (const std::string* text : {&model.model, &model.rope_scaling, &model.key_state, &model.source})
    digest.add(*text);
  for (const int number : {model.num_layers, model.num_q_heads, model.num_kv_heads, model.head_dim})
    digest.add(static_cast<uint64_t>(number));
  digest.add(std::as_bytes(std::span(&model.rope_theta, 1)));
}

inline void add_kv(Digest& digest, const std::string& name) {
  const KvReader kv(name);
  add(digest, kv.type(), kv.model());
  add(digest, kv.documents());
  const uint64_t total = kv.documents().tokens();
  if (kv.has_tokens()) add(digest, kv.tokens(0, total));
  add(digest, kv.positions(0, total));
  for (const int layer : kv.layers()) {
    const LayerShape shape = kv.model().layer_shape(layer);
    for (const Side side : kSides) {
      const size_t width = static_cast<size_t>(shape.heads) * static_cast<size_t>(shape.stored_dim(side));
      for (const auto& [first, end] : kv.documents().held_runs(layer)) {
        Matrix<float> rows(static_cast<size_t>(end - first), width);
        kv.read(side, layer, first, rows);
        add(digest, MatrixView<const float>(rows));
      }
    }
  }
  for (const int layer : kv.query_layers())
    if (const auto queries = kv.queries(layer))
      add(digest, queries->token_rows), add(digest, queries->values);
}

inline void add_codes(Digest& digest, const std::string& name) {
  const CodesReader codes(name);
  const CodesInfo& info = codes.info();
  add(digest, codes.type(), info.model);
  add(digest, info.documents);
  digest.add(info.codec);
  digest.add(info.book_digest);
  const uint64_t total = info.documents.tokens();
  if (codes.has_tokens()) add(digest, codes.tokens(0, total));
  add(digest, codes.positions(0, total));
  (void)codes.ledger();
  for (const int group : info.groups)
    for (const Side side : info.sides(group))
      for (size_t document = 0; document < info.documents.count(); ++document) {
        const auto streams = codes.document(side, group, document);
        for (const StoredStream& stream : codes.streams(side, group)) {
          std::vector<std::byte> bytes(streams->rows(stream.spec.name) * stream.spec.row_bytes());
          streams->read(stream.spec.name, 0, streams->rows(stream.spec.name), bytes);
          digest.add(stream.spec.name);
          add(digest, bytes);
        }
      }
  if (const auto book = codes.embedded_book()) digest.add(book->digest());
}

inline void add_index(Digest& digest, const std::string& name) {
  const IndexReader index(name);
  const IndexInfo& info = index.info();
  add(digest, index.type(), info.model);
  add(digest, info.documents);
  if (index.has_tokens()) add(digest, index.tokens(0, info.documents.tokens()));
  add(digest, index.positions(0, info.documents.tokens()));
  for (const int layer : index.layers())
    for (size_t i = 0; i < info.documents.count() * static_cast<size_t>(info.model.num_kv_heads); ++i) {
      const auto heads = static_cast<size_t>(info.model.num_kv_heads);
      const ClusterIndex clusters = index.read(layer, i / heads, i % heads);
      add(digest, clusters.centroids());
      digest.add(std::as_bytes(clusters.ids()));
      digest.add(std::as_bytes(clusters.offsets()));
    }
}

inline void add_outputs(Digest& digest, const std::string& name) {
  const OutputsReader outputs(name);
  add(digest, outputs.type(), outputs.info().model);
  add(digest, outputs.info().documents);
  const uint64_t queries = outputs.queries();
  add(digest, outputs.positions(0, queries));
  add(digest, outputs.token_rows(0, queries));
  const ModelInfo& model = outputs.info().model;
  Matrix<float> rows(queries, static_cast<size_t>(model.num_q_heads) * static_cast<size_t>(model.head_dim));
  for (const int layer : outputs.info().layers) {
    outputs.read(layer, 0, rows);
    add(digest, MatrixView<const float>(rows));
  }
}

inline void add_selection(Digest& digest, const std::string& name) {
  const SelectionFile file = read_selection_info(name);
  add(digest, file.type, file.info.model);
  add(digest, file.info.documents);
  add(digest, file.info.query_rows);
  for (const auto& [layer, budget] : file.budgets)
    for (const auto& chosen : read_selections(name, layer).chosen)
      for (const Scored& token : chosen) {
        digest.add(uint64_t{token.id});
        digest.add(std::as_bytes(std::span(&token.score, 1)));
      }
}

inline void add_sensitivity(Digest& digest, const std::string& name) {
  const SensitivityFile file = read_sensitivities(name);
  add(digest, file.type, file.info.model);
  for (const auto& layer : file.info.layers) digest.add(std::as_bytes(std::span(layer)));
}

}  // namespace everything

/// A digest of the whole content of a kvcodec file; it differs if the file is read differently.
inline std::string everything_in(const std::string& name) {
  using namespace everything;
  Digest digest;
  const std::string type = identify(name).type;
  if (type == "kv") add_kv(digest, name);
  if (type == "codes") add_codes(digest, name);
  if (type == "index") add_index(digest, name);
  if (type == "outputs") add_outputs(digest, name);
  if (type == "selection") add_selection(digest, name);
  if (type == "sensitivity") add_sensitivity(digest, name);
  if (is_book_type(type)) {
    const BookFile file = read_book(name, "", true);
    add(digest, file.type, file.model);
    digest.add(file.digest);
    for (const Array& array : file.book.arrays) add(digest, array.bytes);
  }
  return digest.hex();
}

}  // namespace kvcodec::test
