// Small files of every type that kvcodec reads, as it writes them and as other programs may: what the fuzz target of HDF5
// readers damages.
#pragma once

#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "formats/cache/book_file.hpp"
#include "formats/results/results.hpp"
#include "lib/codec/outer_codecs.hpp"
#include "lib/codec/registry.hpp"
#include "test/everything.hpp"
#include "test/formats/edit.hpp"
#include "test/formats/folder.hpp"
#include "test/formats/parts.hpp"
#include "test/formats/samples.hpp"
#include "test/fuzz/fuzz.hpp"
#include "test/hdf5_blocks.hpp"

namespace kvcodec::fuzz {

/// The location of a part of a codes file (FORMAT.md, "Parts"), for repairing its digests.
struct SamplePart {
  uint64_t begin = 0, body = 0;      ///< bytes of the file
  uint64_t digests = 0, footer = 0;  ///< where the digests of its pieces begin, and its footer
  uint64_t end = 0;
};

struct Hdf5Sample {
  std::string bytes;
  std::string content;                  ///< everything_in()
  std::vector<test::Hdf5Block> blocks;  ///< with checksums
  std::vector<SamplePart> parts;        ///< of codes
  bool guarded = true;                  ///< all of it by digests: an accident cannot change what it says
};

namespace samples {

inline void write_book_sample(const std::string& path) {
  OutputFile output(path, true);
  write_book(output, test::sample_book(), test::sample_model(2, 2, 4), {"t", {}});
  output.commit();
}

inline void write_index_sample(const std::string& path) {
  IndexInfo info;
  info.model = test::sample_model(2, 2, 4);
  info.parameters.set("metric", std::string("cosine"));
  info.sink = 2;
  info.documents.add("one", 12);
  info.documents.add("none", 0);
  info.batch_ends = {{8, 12}, {}};
  ClusterOptions options;
  options.sink = 2, options.clusters = 2, options.batch = 4, options.batch_clusters = 1;
  const Matrix<float> keys = test::random_rows(12, 8, 5);
  std::vector<ClusterIndex> indices;
  for (size_t document = 0; document < 2; ++document)
    for (size_t head = 0; head < 2; ++head) {
      indices.emplace_back(4, 2);
      const size_t tokens = document == 0 ? 12 : 0;
      const ClusterTask task{&indices.back(), keys.view().rows(0, tokens).columns(head * 4, 4),
                             info.batch_ends[document], head};
      add_batches({&task, 1}, options, 1);
    }
  const std::vector<uint32_t> tokens(12, 7);
  OutputFile output(path, true);
  IndexWriter writer(output, info, tokens, test::counting(3, 12));
  for (const int layer : {0, 1}) writer.add_layer(layer, indices);
  writer.finish({"t", {}});
  output.commit();
}

inline void write_selection_sample(const std::string& path) {
  SelectionInfo info;
  info.model = test::sample_model(2, 2, 4);
  info.parameters.set("by", std::string("codes"));
  info.parameters.set("budget", int64_t{3});
  info.heads = 2;
  info.query_rows = {7, 8};
  info.documents.add("one", 2);
  LayerSelections layer;
  layer.chosen = {{{0.5f, 1}, {0.25f, 3}}, {}, {{1.5f, 0}}, {{0.5f, 6}, {0.25f, 2}, {0.125f, 5}}};
  OutputFile output(path, true);
  write_selections(output, info, {{0, layer}, {1, layer}}, {"t", {}});
  output.commit();
}

inline void write_sensitivity_sample(const std::string& path) {
  SensitivityInfo info{.model = test::sample_model(2, 2, 4), .parameters = {}, .layers = {}, .fisher = {}};
  info.parameters.set("sink", int64_t{4});
  info.layers.resize(2);
  for (auto& layer : info.layers)
    for (Sensitivity& side : layer) {
      side.variance = 0.5;
      for (auto& probe : side.probes) probe = {0.25, {0.125, 0.5}};
      side.nats = {0.75, 0.5};
    }
  Fisher fisher{.layers = 2, .heads = 2, .keys_before_rope = true, .matrices = {}};
  for (auto& side : fisher.matrices)
    for (int head = 0; head < 4; ++head) {
      Matrix<float> identity(4, 4);
      for (size_t i = 0; i < 4; ++i) identity(i, i) = 1;
      side.push_back(identity);
    }
  info.fisher = fisher;
  OutputFile output(path, true);
  write_sensitivities(output, info, {"t", {}});
  output.commit();
}

/// Streams of every kind, packed, and a book inside.
inline void write_codes_sample(const std::string& path) {
  const Book book = test::sample_book();
  test::SampleCodes codes(2, {5, 0, 3}, true, 1);
  codes.info.book_type = book.type;
  codes.info.book_digest = book.digest();
  codes.write(path, 1, &book);
}

/// Writes a file of codes by a codec that decodes.
inline void write_coded_sample(const std::string& path, const char* name) {
  CodesInfo info;
  info.model = test::sample_model(2, 2, 8);
  const CodecContext context{
      .num_layers = 2, .heads = 2, .head_dim = 8, .query_heads = 4, .storage = DType::bf16};
  const CodecEntry& entry = find_codec(name);
  const auto codec = make_codec(entry, *entry.make_options(), context, RopeChoice::keep);
  info.codec = name;
  info.parameters = codec->parameters();
  info.layer_group = static_cast<int>(codec->group_of(0).size());
  for (int layer = 0; layer < 2; layer += info.layer_group) info.groups.push_back(layer);
  constexpr uint64_t kLengths[] = {40, 9};
  std::vector<uint32_t> tokens(49, 3);
  std::vector<uint64_t> positions = test::counting(0, 40), more = test::counting(0, 9);
  positions.insert(positions.end(), more.begin(), more.end());
  for (const uint64_t length : kLengths) info.documents.add("d" + std::to_string(length), length);
  OutputFile output(path, true);
  CodesWriter writer(output, info, *codec, {tokens, positions});
  for (const int group : info.groups)
    for (const Side side : kSides)
      for (size_t d = 0; d < std::size(kLengths); ++d) {
        const GroupShape shape = info.shape(group, side);
        codec->append(shape, test::random_rows(kLengths[d], shape.width(), d),
                      writer.document(side, group, d));
      }
  writer.finish({"t", {}});
  output.commit();
}

/// A cache in the layout of other programs: no digests, and every layout, filter and byte order.
inline void write_foreign_sample(const std::string& path) {
  test::write_sample_kv(path, DType::f32);
  std::vector<float> values(8 * 8);
  std::iota(values.begin(), values.end(), -3.5f);
  test::Edit edit(path);
  for (const char* dataset :
       {"/documents/name", "/documents/offset", "/query_position", "/layers/0/query", "/layers/1/query"})
    edit.remove_attribute(dataset, "digests");
  edit.remove("/digests");
  const std::vector<H5Z_filter_t> filters{H5Z_FILTER_SHUFFLE, H5Z_FILTER_DEFLATE, H5Z_FILTER_FLETCHER32};
  const auto put = [&](const std::string& name, hid_t type, const test::Chunking& chunks) {
    edit.put(name, type, H5T_NATIVE_FLOAT, {8, 2, 4}, values, chunks);
  };
  put("/layers/0/key", H5T_IEEE_F32LE, {});
  put("/layers/0/value", H5T_IEEE_F32BE, {.shape = {3, 2, 2}});
  put("/layers/1/key", H5T_IEEE_F32LE, {.shape = {2, 2, 4}, .filters = filters, .grows = true});
  put("/layers/1/value", H5T_IEEE_F32BE, {.shape = {3, 1, 4}, .filters = filters, .grows = true});
  edit.put("/positions", H5T_STD_I32BE, H5T_NATIVE_INT, {8}, std::vector<int>{0, 1, 2, 3, 4, 0, 1, 2});
  edit.put("/tokens", H5T_STD_I64LE, H5T_NATIVE_INT, {8}, std::vector<int>{0, 1, 2, 3, 4, 0, 1, 2},
           {.shape = {3}});
}

/// The same in the structures of HDF5 1.0 to 1.6, which bear no checksums, with strings of variable length.
inline void write_old_sample(const std::string& path) {
  const std::string source = path + ".new";
  write_foreign_sample(source);
  const hid_t from = test::Edit::check(H5Fopen(source.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT));
  const hid_t to = test::Edit::check(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT));
  for (const char* object : {"documents", "layers", "positions", "tokens", "query_position"})
    test::Edit::check(H5Ocopy(from, object, to, object, H5P_DEFAULT, H5P_DEFAULT));
  const auto copy_attribute = [](hid_t root, const char* name, const H5A_info_t*, void* target) -> herr_t {
    const hid_t attribute = H5Aopen(root, name, H5P_DEFAULT);
    const hid_t type = H5Aget_type(attribute), space = H5Aget_space(attribute);
    std::vector<char> bytes(H5Tget_size(type) * static_cast<size_t>(H5Sget_simple_extent_npoints(space)));
    H5Aread(attribute, type, bytes.data());
    const hid_t copy = H5Acreate2(*static_cast<hid_t*>(target), name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    H5Awrite(copy, type, bytes.data());
    H5Aclose(copy), H5Sclose(space), H5Tclose(type), H5Aclose(attribute);
    return 0;
  };
  hid_t target = to;
  test::Edit::check(H5Aiterate2(from, H5_INDEX_NAME, H5_ITER_NATIVE, nullptr, copy_attribute, &target));
  const hid_t text = H5Tcopy(H5T_C_S1);
  H5Tset_size(text, H5T_VARIABLE);
  H5Adelete(to, "model");
  const char* model = "a name";
  const hid_t scalar = H5Screate(H5S_SCALAR);
  const hid_t attribute = test::Edit::check(H5Acreate2(to, "model", text, scalar, H5P_DEFAULT, H5P_DEFAULT));
  H5Awrite(attribute, text, &model);
  H5Aclose(attribute), H5Sclose(scalar);
  H5Ldelete(to, "/documents/name", H5P_DEFAULT);
  const std::vector<const char*> names{"first", "empty", "third"};
  const hsize_t count = names.size();
  const hid_t space = H5Screate_simple(1, &count, nullptr);
  const hid_t dataset = test::Edit::check(
      H5Dcreate2(to, "/documents/name", text, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
  H5Dwrite(dataset, text, H5S_ALL, H5S_ALL, H5P_DEFAULT, names.data());
  H5Dclose(dataset), H5Sclose(space), H5Tclose(text);
  H5Fclose(to), H5Fclose(from);
}

/// Places of the parts of a codes file, whose /data is one chunk.
inline std::vector<SamplePart> parts_of(const std::string& path, const std::string& bytes) {
  test::PartsFile file(path);
  const uint64_t data = test::chunk_address(path, "/data", 0);
  std::vector<SamplePart> parts;
  for (uint64_t row = 0; row < file.rows(); ++row)
    for (uint64_t column = 0; column < file.columns(); ++column) {
      const auto [begin, size] = file.place(row, column);
      if (size == 0) continue;
      const test::RawPart raw = file.get(row, column);
      uint32_t footer_bytes = 0;
      const uint64_t end = data + begin + size;
      std::memcpy(&footer_bytes, bytes.data() + end - 24, sizeof footer_bytes);
      parts.push_back(
          {data + begin, raw.body.size(), end - 24 - raw.digests.size(), end - footer_bytes, end});
    }
  return parts;
}

inline void put_digest(std::string& bytes, uint64_t at, uint64_t from, uint64_t size) {
  const Digest128 digest = digest_of(std::as_bytes(std::span(bytes)).subspan(from, size));
  std::memcpy(bytes.data() + at, digest.data(), digest.size());
}

}  // namespace samples

/// All of them, made once.
inline std::vector<Hdf5Sample> make_hdf5_samples() {
  struct Kind {
    void (*write)(const std::string& path);
    bool guarded = true, codes = false;
  };
  const Kind kinds[] = {
      {[](const std::string& path) { test::write_sample_kv(path); }},
      {samples::write_foreign_sample, false},
      {samples::write_old_sample, false},
      {samples::write_codes_sample, true, true},
      {[](const std::string& path) { samples::write_coded_sample(path, "kivi"); }, true, true},
      {[](const std::string& path) { samples::write_coded_sample(path, "none"); }, true, true},
      {samples::write_book_sample},
      {samples::write_index_sample},
      {test::write_sample_outputs},
      {samples::write_selection_sample},
      {samples::write_sensitivity_sample},
  };
  const test::Folder folder;
  std::vector<Hdf5Sample> made;
  made.reserve(std::size(kinds));
  for (const Kind& kind : kinds) {
    const std::string path = folder / std::to_string(made.size());
    kind.write(path);
    Hdf5Sample& sample = made.emplace_back();
    sample.bytes = test::file_bytes(path);
    sample.content = test::everything_in(path);
    sample.blocks = test::checksummed_blocks(sample.bytes);
    if (kind.codes) sample.parts = samples::parts_of(path, sample.bytes);
    sample.guarded = kind.guarded;
  }
  return made;
}

/// Repairs the checksums of the sample's metadata, and the digests of its parts, after bytes were changed.
inline void mend(const Hdf5Sample& sample, std::string& bytes) {
  constexpr uint64_t kPiece = 65536;
  for (const SamplePart& part : sample.parts) {
    for (uint64_t first = 0; first < part.body; first += kPiece)
      samples::put_digest(bytes, part.digests + first / kPiece * 16, part.begin + first,
                          std::min(kPiece, part.body - first));
    samples::put_digest(bytes, part.end - 16, part.footer, part.end - 16 - part.footer);
  }
  test::mend_checksums(bytes, sample.blocks);
}

}  // namespace kvcodec::fuzz
