// One damaged file per named defect: each must be refused with one line that names the file, the object and the expected content.
#include <functional>
#include <limits>

#include "formats/cache/book_file.hpp"
#include "formats/cache/codes_io.hpp"
#include "formats/results/results.hpp"
#include "lib/codec/registry.hpp"
#include "test/formats/edit.hpp"
#include "test/formats/flips.hpp"
#include "test/formats/folder.hpp"
#include "test/formats/parts.hpp"
#include "test/formats/samples.hpp"
#include "test/test.hpp"

namespace malformed_test {

using namespace kvcodec;
using namespace kvcodec::test;

namespace {

struct Defect {
  std::string name;
  std::function<void(const std::string& path)> make;
  std::string message;  ///< what the error must contain
};

/// Makes a good file, checks that it is read, then damages copies of it.
void check_defects(const std::function<void(const std::string&)>& write,
                   const std::function<void(const std::string&)>& read, const std::vector<Defect>& defects) {
  const Folder folder;
  write(folder / "good.h5");
  read(folder / "good.h5");
  for (const Defect& defect : defects) {
    CAPTURE(defect.name);
    const std::string path = folder / "bad.h5";
    std::filesystem::copy_file(folder / "good.h5", path, std::filesystem::copy_options::overwrite_existing);
    defect.make(path);
    std::string message = "no error";
    ErrorKind kind = ErrorKind::failed;
    try {
      read(path);
    } catch (const Error& error) {
      message = error.what();
      kind = error.kind();
    }
    CAPTURE(message);
    CHECK(message.starts_with(path + ": "));
    CHECK(message.find(defect.message) != message.npos);
    CHECK(message.find('\n') == message.npos);
    CHECK(static_cast<int>(kind) == static_cast<int>(ErrorKind::bad_input));
  }
}

void write_book_file(const std::string& path) {
  OutputFile output(path, true);
  write_book(output, sample_book(), sample_model(2, 2, 4), {"t", {}});
  output.commit();
}

void read_kv(const std::string& path) {
  const KvReader reader(path);
  const uint64_t total = reader.documents().tokens();
  reader.tokens(0, total);
  reader.positions(0, total);
  Matrix<float> rows(total, 8);
  for (const int layer : reader.layers()) {
    for (const Side side : kSides) reader.read(side, layer, 0, rows);
    reader.queries(layer);
  }
}

void read_codes(const std::string& path) {
  const CodesReader reader(path);
  const uint64_t total = reader.info().documents.tokens();
  if (reader.has_tokens()) reader.tokens(0, total);
  reader.positions(0, total);
  reader.embedded_book();
  reader.check_streams(SampleCodec(reader.info().layer_group));
  for (const int layer : reader.info().groups)
    for (const Side side : kSides)
      for (const StoredStream& stream : reader.streams(side, layer))
        for (size_t d = 0; d < reader.info().documents.count(); ++d) {
          const auto document = reader.document(side, layer, d);
          std::vector<std::byte> bytes(document->rows(stream.spec.name) * stream.spec.row_bytes());
          document->read(stream.spec.name, 0, document->rows(stream.spec.name), bytes);
        }
  reader.ledger();
}

void read_outputs(const std::string& path) {
  const OutputsReader reader(path);
  reader.positions(0, reader.queries());
  reader.token_rows(0, reader.queries());
  Matrix<float> rows(reader.queries(), 16);
  for (const int layer : reader.info().layers) reader.read(layer, 0, rows);
}

/// A change made with HDF5.
auto edit(std::function<void(Edit&)> change) {
  return [change = std::move(change)](const std::string& path) {
    Edit file(path);
    change(file);
  };
}

auto shorten(uint64_t bytes) {
  return [bytes](const std::string& path) {
    std::filesystem::resize_file(path, std::filesystem::file_size(path) - bytes);
  };
}

/// Defects that every type of file can have.
std::vector<Defect> common_defects(const std::string& other_type, const std::string& wanted) {
  return {
      {"not HDF5", [](const std::string& path) { std::ofstream(path) << "GGUF"; }, "not an HDF5 file"},
      {"empty", [](const std::string& path) { std::filesystem::resize_file(path, 0); }, "not an HDF5 file"},
      {"missing", [](const std::string& path) { std::filesystem::remove(path); },
       "No such file or directory"},
      {"truncated by a byte", shorten(1), "cannot be opened as HDF5 (damaged or truncated): truncated file"},
      {"truncated by half",
       [](const std::string& path) {
         std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
       },
       "cannot be opened as HDF5 (damaged or truncated)"},
      {"superblock damaged", [](const std::string& path) { flip_byte(path, 20); },
       "cannot be opened as HDF5"},
      {"no type", edit([](Edit& f) { f.remove_attribute("/", "kvcodec_type"); }),
       "not a kvcodec file: it has no attribute 'kvcodec_type'"},
      {"another type", edit([other_type](Edit& f) { f.set("/", "kvcodec_type", other_type); }),
       "is a " + other_type + " file; " + (wanted == "outputs" ? "an " : "a ") + wanted +
           " file is wanted here"},
      {"unknown type", edit([](Edit& f) { f.set("/", "kvcodec_type", std::string("poem")); }),
       "is of type 'poem', which kvcodec"},
      {"type is a number", edit([](Edit& f) { f.set("/", "kvcodec_type", int64_t{4}); }),
       "attribute 'kvcodec_type' is not a string"},
      {"newer version", edit([](Edit& f) { f.set("/", "kvcodec_version", int64_t{99}); }),
       "file of version 99; kvcodec"},
      {"version 0", edit([](Edit& f) { f.set("/", "kvcodec_version", int64_t{0}); }),
       "attribute 'kvcodec_version' is 0"},
      {"version is text", edit([](Edit& f) { f.set("/", "kvcodec_version", std::string("1")); }),
       "attribute 'kvcodec_version' is not an integer"},
      {"no version", edit([](Edit& f) { f.remove_attribute("/", "kvcodec_version"); }),
       "attribute 'kvcodec_version' is missing"},
      {"no history", edit([](Edit& f) { f.remove_attribute("/", "history"); }),
       "attribute 'history' is missing"},
      {"no head_dim", edit([](Edit& f) { f.remove_attribute("/", "head_dim"); }),
       "attribute 'head_dim' is missing"},
      {"negative head_dim", edit([](Edit& f) { f.set("/", "head_dim", int64_t{-4}); }),
       "attribute 'head_dim' is -4; 1 to"},
      {"no heads", edit([](Edit& f) { f.set("/", "num_kv_heads", int64_t{0}); }),
       "attribute 'num_kv_heads' is 0"},
      {"absurd number of layers", edit([](Edit& f) { f.set("/", "num_layers", int64_t{1} << 40); }),
       "attribute 'num_layers' is 1099511627776"},
      {"more layers than any model has",
       edit([](Edit& f) { f.set("/", "num_layers", (int64_t{1} << 20) + 1); }),
       "attribute 'num_layers' is 1048577; 1 to 1048576 is possible"},
      {"more heads than any model has",
       edit([](Edit& f) { f.set("/", "num_kv_heads", int64_t{2147483647}); }),
       "attribute 'num_kv_heads' is 2147483647; 1 to 1048576 is possible"},
      {"heads that do not divide", edit([](Edit& f) { f.set("/", "num_q_heads", int64_t{3}); }),
       "no multiple of num_kv_heads 2"},
      {"theta not a number",
       edit([](Edit& f) { f.set("/", "rope_theta", std::numeric_limits<double>::quiet_NaN()); }),
       "attribute 'rope_theta' is nan"},
      {"a description of the embedding that is no JSON",
       edit([](Edit& f) { f.set("/", "rope_scaling", std::string("linear: 2")); }),
       "attribute 'rope_scaling': not JSON from byte 1 on"},
      {"a description of the embedding that is a list",
       edit([](Edit& f) { f.set("/", "rope_scaling", std::string("[2]")); }),
       "attribute 'rope_scaling': holds a JSON array; it must be an object"},
      {"an import of which nothing is said in JSON",
       edit([](Edit& f) { f.set("/", "imported", std::string("mlx")); }),
       "attribute 'imported': not JSON from byte 1 on"},
      {"unknown key state", edit([](Edit& f) { f.set("/", "key_state", std::string("sideways")); }),
       "attribute 'key_state' is 'sideways'"},
  };
}

/// Defects of names and offsets of documents; says: the error of a table that gives the last document another token.
std::vector<Defect> document_defects(const std::string& says) {
  return {
      {"no documents", edit([](Edit& f) { f.remove("/documents"); }), "/documents/name: is missing"},
      {"no offsets", edit([](Edit& f) { f.remove("/documents/offset"); }), "/documents/offset: is missing"},
      {"offsets beyond the tokens", edit([](Edit& f) {
         f.put("/documents/offset", {0, 5, 5, 9});
       }),
       says},
      {"huge offsets", edit([](Edit& f) {
         f.put("/documents/offset", {0, 5, 5, uint64_t{1} << 62});
       }),
       "4611686018427387"},
      {"offsets that fall", edit([](Edit& f) {
         f.put("/documents/offset", {0, 5, 4, 8});
       }),
       "/documents/offset: falls from 5 to 4 after document 1"},
      {"offsets that do not begin at 0", edit([](Edit& f) {
         f.put("/documents/offset", {1, 5, 5, 8});
       }),
       "/documents/offset: begins with 1"},
      {"too few offsets", edit([](Edit& f) {
         f.put("/documents/offset", {0, 5, 8});
       }),
       "/documents/offset: has 3 elements; 3 documents have 4"},
      {"no offset at all", edit([](Edit& f) { f.put("/documents/offset", {}); }),
       "/documents/offset: has 0 elements"},
      {"offsets are floats", edit([](Edit& f) {
         f.put_floats("/documents/offset", {4}, {0, 5, 5, 8});
       }),
       "/documents/offset: holds no integers"},
      {"names are numbers", edit([](Edit& f) {
         f.put("/documents/name", {1, 2, 3});
       }),
       "/documents/name: holds no strings"},
      {"negative offsets", edit([](Edit& f) {
         f.put("/documents/offset", H5T_STD_I64LE, H5T_NATIVE_LLONG, {4},
               std::vector<long long>{0, -5, 5, 8});
       }),
       "/documents/offset: element 1 is -5; 0 to"},
  };
}

/// Defects of the datasets of a kv file that have a row per token, and of its layers.
std::vector<Defect> column_defects() {
  return {
      {"tokens of another length", edit([](Edit& f) {
         f.put("/tokens", {1, 2, 3});
       }),
       "/tokens: has the shape [3]; the documents have 8 tokens"},
      {"tokens too large", edit([](Edit& f) {
         f.put("/tokens", {1, 2, 3, 4, 5, 6, 7, uint64_t{1} << 32});
       }),
       "/tokens: element 7 is 4294967296"},
      {"no positions", edit([](Edit& f) { f.remove("/positions"); }), "/positions: is missing"},
      {"positions of another length", edit([](Edit& f) { f.put("/positions", std::vector<uint64_t>(9)); }),
       "/positions: has the shape [9]"},
      {"positions of two dimensions", edit([](Edit& f) {
         f.put("/positions", H5T_STD_U64LE, H5T_NATIVE_UINT64, {8, 1}, std::vector<uint64_t>(8));
       }),
       "/positions: has the shape [8, 1]"},
      {"no layers", edit([](Edit& f) { f.remove("/layers"); }), "/layers: is missing"},
      {"layers is a dataset", edit([](Edit& f) { f.put("/layers", {1}); }), "/layers: is not a group"},
      {"a layer beyond the model", edit([](Edit& f) { f.make_group("/layers/400"); }),
       "/layers/400: the model has"},
  };
}

std::vector<Defect> join(std::vector<Defect> a, std::vector<Defect> b, std::vector<Defect> c) {
  a.insert(a.end(), b.begin(), b.end());
  a.insert(a.end(), c.begin(), c.end());
  return a;
}

}  // namespace

TEST_CASE("malformed: kv files") {
  const std::vector<float> values(64, 1.0f);
  const std::vector<Defect> own{
      {"no layer", edit([](Edit& f) { f.remove("/layers/0"), f.remove("/layers/1"); }),
       "/layers: holds no layer"},
      {"no value", edit([](Edit& f) { f.remove("/layers/1/value"); }), "/layers/1/value: is missing"},
      {"key is a group", edit([](Edit& f) { f.remove("/layers/1/key"), f.make_group("/layers/1/key"); }),
       "/layers/1/key: is not a dataset"},
      {"fewer heads", edit([&](Edit& f) {
         f.put_floats("/layers/0/key", {8, 1, 8}, values);
       }),
       "/layers/0/key: is f32 [8, 1, 8]; f32 [8, 2, 4] is wanted"},
      {"another rank", edit([&](Edit& f) {
         f.put_floats("/layers/0/key", {8, 8}, values);
       }),
       "/layers/0/key: is f32 [8, 8]"},
      {"a single value", edit([](Edit& f) { f.put_floats("/layers/0/key", {}, {1.0f}); }),
       "/layers/0/key: is a single value"},
      {"more tokens", edit([](Edit& f) {
         f.put_floats("/layers/0/key", {9, 2, 4}, std::vector<float>(72));
       }),
       "/layers/0/key: is f32 [9, 2, 4]"},
      {"integers", edit([](Edit& f) {
         f.put("/layers/0/key", H5T_STD_U16LE, H5T_NATIVE_USHORT, {8, 2, 4}, std::vector<unsigned short>(64));
       }),
       "/layers/0/key: is u16; bf16, f16 and f32 are possible"},
      {"doubles", edit([](Edit& f) {
         f.put("/layers/0/key", H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, {8, 2, 4}, std::vector<double>(64));
       }),
       "/layers/0/key: is f64"},
      {"two types", edit([&](Edit& f) {
         f.put_floats("/layers/1/value", {8, 2, 4}, values);
       }),
       "/layers/1/value: is f32, but the layers before are bf16"},
      {"not finite", edit([&](Edit& f) {
         for (const char* path : {"/layers/0/key", "/layers/0/value", "/layers/1/key", "/layers/1/value"}) {
           auto bad = values;
           if (path == std::string("/layers/1/key")) bad[63] = std::numeric_limits<float>::infinity();
           f.put_floats(path, {8, 2, 4}, bad);
         }
       }),
       "/layers/1/key: token 7, head 1, dimension 3 is not finite"},
      {"hollow chunks", edit([](Edit& f) {
         f.put_hollow("/layers/0/key", H5T_IEEE_F32LE, {8, 2, 4}, {8, 2, 4});
       }),
       "/layers/0/key: claims 256 bytes [8, 2, 4], but 0 are stored"},
      {"huge claim", edit([](Edit& f) {
         f.put_hollow("/layers/0/key", H5T_IEEE_F32LE, {hsize_t{1} << 40, 2, 4}, {8, 2, 4});
       }),
       "/layers/0/key: claims"},
      {"claim beyond 64 bits", edit([](Edit& f) {
         f.put_hollow("/tokens", H5T_STD_U32LE, {hsize_t{1} << 60, hsize_t{1} << 3}, {8, 8});
       }),
       "/tokens: "},
      {"checksum of a chunk",
       [](const std::string& path) { flip_byte(path, chunk_address(path, "/layers/1/value", 0) + 17); },
       "/layers/1/value: checksum of rows 0 to 7 does not hold"},
      {"the checksum itself",
       [](const std::string& path) { flip_byte(path, chunk_address(path, "/positions", 0) + 8 * 4 + 2); },
       "/positions: checksum of rows 0 to 7 does not hold"},
      {"query of a token that is not", edit([](Edit& f) {
         f.put("/query_position", {4, 8});
       }),
       "/query_position: element 1 is 8; 0 to 7 is possible"},
      {"queries out of order", edit([](Edit& f) {
         f.put("/query_position", {7, 4});
       }),
       "/query_position: 7 is followed by 4; tokens that have queries rise"},
      {"two queries of one token", edit([](Edit& f) {
         f.put("/query_position", {4, 4});
       }),
       "/query_position: 4 is followed by 4; tokens that have queries rise"},
      {"a position twice", edit([](Edit& f) {
         f.put("/positions", {0, 1, 2, 2, 4, 0, 1, 2});
       }),
       "/positions: document 0 ('first'): position 2 is followed by 2 (its tokens 2 and 3); positions rise within a "
       "document. A cache that was padded on the left has such positions: leave out the rows of the padding"},
      {"offsets shifted by a token", edit([](Edit& f) {
         f.put("/positions", {0, 1, 2, 3, 4, 0, 1, 2});
         f.put("/documents/offset", {0, 6, 6, 8});
       }),
       "/positions: document 0 ('first'): position 4 is followed by 0 (its tokens 4 and 5)"},
      {"more queries than positions", edit([](Edit& f) { f.put("/query_position", {4}); }),
       "/layers/0/query: is bf16 [2, 4, 4]; bf16 [1, 4, 4] is wanted"},
  };
  check_defects([](const std::string& path) { write_sample_kv(path); }, read_kv,
                join(join(common_defects("codes", "kv"), document_defects("the documents have 9 tokens"),
                          column_defects()),
                     own, {}));
}

TEST_CASE("malformed: outputs files") {
  const std::vector<Defect> own{
      {"no codec", edit([](Edit& f) { f.remove_attribute("/", "codec"); }), "attribute 'codec' is missing"},
      {"no documents", edit([](Edit& f) { f.remove("/documents"); }), "/documents/name: is missing"},
      {"offsets beyond the queries", edit([](Edit& f) {
         f.put("/documents/offset", {0, 3, 3, 6});
       }),
       "the documents have 6 queries"},
      {"no positions", edit([](Edit& f) { f.remove("/positions"); }), "/positions: is missing"},
      {"positions of another length", edit([](Edit& f) { f.put("/positions", std::vector<uint64_t>(4)); }),
       "/positions: has the shape [4]"},
      {"no rows of tokens", edit([](Edit& f) { f.remove("/query_position"); }),
       "/query_position: is missing"},
      {"rows of tokens of another length",
       edit([](Edit& f) { f.put("/query_position", std::vector<uint64_t>(6)); }),
       "/query_position: has the shape [6]"},
      {"negative position", edit([](Edit& f) {
         f.put("/positions", H5T_STD_I64LE, H5T_NATIVE_LLONG, {5}, std::vector<long long>{0, 1, 2, -3, 4});
       }),
       "/positions: element 3 is -3"},
      {"no layers", edit([](Edit& f) { f.remove("/layers"); }), "/layers: is missing"},
      {"a layer beyond the model", edit([](Edit& f) { f.make_group("/layers/3"); }),
       "/layers/3: the model has 3 layers"},
      {"a layer without outputs", edit([](Edit& f) { f.remove("/layers/2/output"); }),
       "/layers/2/output: is missing"},
      {"outputs of another shape", edit([](Edit& f) {
         f.put_floats("/layers/2/output", {5, 2, 8}, std::vector<float>(80));
       }),
       "/layers/2/output: is f32 [5, 2, 8]; f32 [5, 4, 4] is wanted"},
      {"too few outputs", edit([](Edit& f) {
         f.put_floats("/layers/2/output", {4, 4, 4}, std::vector<float>(64));
       }),
       "/layers/2/output: is f32 [4, 4, 4]; f32 [5, 4, 4] is wanted"},
      {"outputs of another type", edit([](Edit& f) {
         f.put("/layers/0/output", H5T_IEEE_F64LE, H5T_NATIVE_FLOAT, {5, 4, 4}, std::vector<float>(80));
       }),
       "/layers/0/output: is f64"},
      {"an output that is not finite", edit([](Edit& f) {
         std::vector<float> values(80);
         values[16 + 6] = std::numeric_limits<float>::quiet_NaN();
         f.put_floats("/layers/0/output", {5, 4, 4}, values);
       }),
       "/layers/0/output: query 1, head 1, dimension 2 is not finite"},
      {"checksum",
       [](const std::string& path) { flip_byte(path, chunk_address(path, "/layers/2/output", 0) + 5); },
       "/layers/2/output: checksum of rows 0 to 4 does not hold"},
  };
  check_defects(write_sample_outputs, read_outputs, join(common_defects("kv", "outputs"), own, {}));
}

TEST_CASE("malformed: sensitivity files") {
  const auto write = [](const std::string& path) {
    OutputFile output(path, true);
    SensitivityInfo info{.model = sample_model(2, 2, 4), .parameters = {}, .layers = {}, .fisher = {}};
    info.layers.resize(2);
    write_sensitivities(output, info, {"t", {}});
    output.commit();
  };
  check_defects(
      write, [](const std::string& path) { (void)read_sensitivities(path); },
      join(common_defects("kv", "sensitivity"),
           {{"no variances", edit([](Edit& f) { f.remove("/variance"); }), "/variance: is missing"}}, {}));
}

TEST_CASE("malformed: dictionary files") {
  const std::vector<Defect> own{
      {"no digest", edit([](Edit& f) { f.remove_attribute("/", "digest"); }),
       "attribute 'digest' is missing"},
      {"another digest", edit([](Edit& f) { f.set("/", "digest", std::string(32, '0')); }),
       "the digest does not hold (00000000000000000000000000000000 stored"},
      {"an array is missing", edit([](Edit& f) { f.remove("/key/atoms"); }), "/key/atoms: is missing"},
      {"an array changed", edit([](Edit& f) {
         f.put_floats("/key/atoms", {3, 2}, {1, 0, 0, 1, -1, 0.5f});
       }),
       "the digest does not hold"},
      {"an array reshaped", edit([](Edit& f) {
         f.put_floats("/key/atoms", {2, 3}, {1, 0, 0, 1, -1, 0});
       }),
       "the digest does not hold"},
      {"strings for atoms", edit([](Edit& f) {
         const hid_t type = H5Tcopy(H5T_C_S1);
         f.put("/key/atoms", type, type, {3}, std::vector<char>{'a', 'b', 'c'});
         H5Tclose(type);
       }),
       "/key/atoms: is of a type that no book has"},
      {"parameters are no JSON", edit([](Edit& f) { f.set("/", "parameters", std::string("{")); }),
       "attribute 'parameters': is not a JSON object"},
      {"parameters are nested", edit([](Edit& f) { f.set("/", "parameters", std::string(R"({"a":[1]})")); }),
       "attribute 'parameters': parameter 'a' is neither"},
      {"parameters too large",
       edit([](Edit& f) { f.set("/", "parameters", std::string(R"({"a":18446744073709551615})")); }),
       "parameter 'a' does not fit 64 bits"},
      {"array outside", edit([](Edit& f) { f.set("/", "arrays", std::string("../key/atoms")); }),
       "attribute 'arrays' has '../key/atoms', which is not a name"},
      {"hollow array", edit([](Edit& f) {
         f.put_hollow("/key/atoms", H5T_IEEE_F32LE, {hsize_t{1} << 50, 2}, {1, 2});
       }),
       "/key/atoms: claims"},
      {"checksum", [](const std::string& path) { flip_byte(path, chunk_address(path, "/key/atoms", 0)); },
       "/key/atoms: checksum of rows 0 to 2 does not hold"},
      {"external link", edit([](Edit& f) {
         f.remove("/key/atoms");
         Edit::check(
             H5Lcreate_external("/etc/passwd", "/x", f.file(), "/key/atoms", H5P_DEFAULT, H5P_DEFAULT));
       }),
       "/key/atoms: is a link to another file"},
      {"external storage", edit([](Edit& f) {
         f.remove("/key/atoms");
         const hsize_t extent = 4;
         const hid_t space = H5Screate_simple(1, &extent, nullptr), creation = H5Pcreate(H5P_DATASET_CREATE);
         H5Pset_external(creation, "/etc/passwd", 0, 16);
         H5Dclose(Edit::check(
             H5Dcreate2(f.file(), "/key/atoms", H5T_IEEE_F32LE, space, H5P_DEFAULT, creation, H5P_DEFAULT)));
         H5Pclose(creation);
         H5Sclose(space);
       }),
       "/key/atoms: is stored in another file"},
      {"dangling link", edit([](Edit& f) {
         f.remove("/key/atoms");
         Edit::check(H5Lcreate_soft("/nowhere", f.file(), "/key/atoms", H5P_DEFAULT, H5P_DEFAULT));
       }),
       "/key/atoms: is missing"},
  };
  check_defects(
      write_book_file, [](const std::string& path) { read_book(path, "dictionary", true); },
      join(common_defects("kv", "dictionary"), {}, own));
}

namespace {

/// A change of the parts of a codes file.
auto edit_parts(std::function<void(PartsFile&)> change) {
  return [change = std::move(change)](const std::string& path) {
    PartsFile parts(path);
    change(parts);
    parts.save();
  };
}

/// A change of one part, which then lies where the table says, with a footer whose digest holds.
auto edit_part(uint64_t row, uint64_t column, std::function<void(RawPart&)> change) {
  return edit_parts([=, change = std::move(change)](PartsFile& parts) {
    RawPart part = parts.get(row, column);
    change(part);
    parts.put(row, column, part);
  });
}

}  // namespace

TEST_CASE("malformed: codes files") {
  SampleCodes sample(2, {5, 0, 3}, true, 1);
  const Book book = sample_book();
  sample.info.book_type = book.type;
  sample.info.book_digest = book.digest();
  sample.info.book_bytes = book.size_bytes();
  const std::string layout = to_json_text(layout_of(sample.codec.streams(sample.shape(0, Side::key)), true));
  const std::string of_index = R"([{"name":"tokens","type":"u32","row":[],"category":"index"},)"
                               R"({"name":"positions","type":"u32","row":[],"category":"index"}])";
  /// The sides' layout with that text in place of this.
  const auto relayout = [&](const std::string& from, const std::string& to) {
    const size_t at = layout.find(from);
    REQUIRE(at != std::string::npos);
    std::string changed = layout;
    changed.replace(at, from.size(), to);
    return edit([=](Edit& f) { f.set("/", "layouts", std::vector{changed, of_index}); });
  };
  const auto groups = [](std::vector<uint64_t> first_layers) {
    return edit([=](Edit& f) { f.set("/", "groups", first_layers); });
  };
  const auto side_layout = [](std::vector<uint64_t> numbers) {
    return edit([=](Edit& f) { f.set("/", "side_layout", numbers); });
  };
  const std::string key = "/layers/0/key: document 0: ";
  const std::vector<Defect> own{
      {"no codec", edit([](Edit& f) { f.remove_attribute("/", "codec"); }), "attribute 'codec' is missing"},
      {"parameters are no JSON", edit([](Edit& f) { f.set("/", "parameters", std::string("nonsense")); }),
       "attribute 'parameters': is not a JSON object"},
      {"storage unknown", edit([](Edit& f) { f.set("/", "storage", std::string("fp4")); }),
       "attribute 'storage' is 'fp4'"},
      {"storage too wide", edit([](Edit& f) { f.set("/", "storage", std::string("f32")); }),
       "attribute 'storage' is f32; bf16 and f16 are possible"},
      {"layer group 0", edit([](Edit& f) { f.set("/", "layer_group", int64_t{0}); }),
       "attribute 'layer_group' is 0; 1 to 4"},
      {"layer group of another codec", edit([](Edit& f) { f.set("/", "layer_group", int64_t{1}); }),
       "/layers/0/"},
      {"negative book size", edit([](Edit& f) { f.set("/", "book_bytes", int64_t{-1}); }),
       "attribute 'book_bytes' is -1"},
      {"packed is neither", edit([](Edit& f) { f.set("/", "packed", int64_t{2}); }),
       "attribute 'packed' is 2"},

      {"no list of groups", edit([](Edit& f) { f.remove_attribute("/", "groups"); }),
       "attribute 'groups' is missing"},
      {"no groups", groups({}), "attribute 'groups' names no layer"},
      {"groups are text", edit([](Edit& f) { f.set("/", "groups", std::string("0,2")); }),
       "attribute 'groups' has no integers"},
      {"a group that does not fit", groups({0, 1}),
       "attribute 'groups': 2 layers from 0 on do not fit before layer 1"},
      {"a group at the end", groups({0, 3}),
       "attribute 'groups': 2 layers from 3 on do not fit before layer 4"},
      {"groups that fall", groups({2, 0}),
       "attribute 'groups': 2 layers from 2 on do not fit before layer 0"},
      {"a layer beyond the model", groups({0, 400}), "attribute 'groups': 2 layers from 400 on"},
      {"a layer beyond all bounds", groups({0, ~uint64_t{0}}),
       "attribute 'groups': 2 layers from 18446744073709551615 on"},
      {"a group less", groups({0}), "attribute 'side_layout' has 5 numbers; 1 groups have 3"},
      {"no layouts of sides", edit([](Edit& f) { f.remove_attribute("/", "side_layout"); }),
       "attribute 'side_layout' is missing"},
      {"a layout that is none", side_layout({0, 0, 0, 2, 1}),
       "attribute 'side_layout' has a 2; there are 2 layouts"},
      {"tokens in a side", side_layout({0, 0, 0, 1, 1}),
       "attribute 'side_layout': tokens and positions have the layout of a side"},

      {"places of fewer shared parts",
       edit([](Edit& f) { f.set("/", "shared_parts", std::vector<uint64_t>(8)); }),
       "attribute 'shared_parts' has 8 numbers; 5 columns have 10"},
      {"no places of shared parts",
       edit([](Edit& f) { f.set("/", "shared_parts", std::vector<uint64_t>(10)); }),
       "/layers/0/key: /parts gives it 0 bytes"},
      {"shared parts beyond the data",
       edit([](Edit& f) { f.set("/", "shared_parts", std::vector<uint64_t>(10, uint64_t{1} << 40)); }),
       "/parts: the part of row 0, column 0 has"},

      {"no layouts", edit([](Edit& f) { f.remove_attribute("/", "layouts"); }),
       "attribute 'layouts' is missing"},
      {"layouts are numbers", edit([](Edit& f) { f.set("/", "layouts", int64_t{1}); }),
       "attribute 'layouts' is not a string"},
      {"a layout that is not a JSON", relayout("[{", "{"), "attribute 'layouts', 0: is not a JSON array"},
      {"a stream that is not an object", relayout("[{", "[3,{"),
       "attribute 'layouts', 0: element 0 is not a JSON object"},
      {"a name that is none", relayout("\"values\"", "\"The values\""),
       "'The values' is not a name of a stream"},
      {"no name", relayout("\"name\":\"values\",", ""), "attribute 'layouts', 0: 'name' is missing"},
      {"a name twice", relayout("\"wide-ids\"", "\"ids\""), "stream 'ids' is there twice"},
      {"an element type that is none", relayout("\"f64\"", "\"q4\""),
       "stream 'tail': 'type' is 'q4', which is not an element type"},
      {"no row shape", relayout("\"row\":[3],", ""), "stream 'ids': 'row' is not a list of extents"},
      {"a negative extent", relayout("\"row\":[3],", "\"row\":[-3],"),
       "stream 'ids': 'row' is not a list of extents"},
      {"rows of nothing", relayout("\"row\":[3],", "\"row\":[0],"), "stream 'ids': has rows of no bytes"},
      {"rows beyond 64 bits", relayout("\"row\":[3],", "\"row\":[4294967296,4294967296],"),
       "stream 'ids': size "},
      {"an unknown category", relayout("\"offsets\"", "\"junk\""),
       "stream 'flags': 'category' is 'junk'; payload, "},
      {"no category", relayout(",\"category\":\"offsets\"", ""), "stream 'flags': 'category' is missing"},
      {"a bound of 0", relayout("\"index_bound\":1000", "\"index_bound\":0"),
       "stream 'ids': 'index_bound' is 0; 1 or more is possible"},
      {"packed to another width", relayout("\"packed_bits\":10", "\"packed_bits\":9"),
       "stream 'ids': 'packed_bits' is 9; u16 below 1000 take 10"},
      {"packed to 33 bits", relayout("\"packed_bits\":10", "\"packed_bits\":33"),
       "stream 'ids': 'packed_bits' is 33"},
      {"packed without a bound", relayout("\"index_bound\":1000,", ""), "stream 'ids': 'packed_bits' is 10"},
      {"packed floats", relayout("\"u16\"", "\"f32\""), "stream 'ids': 'packed_bits' is 10"},
      {"not packed", relayout(",\"packed_bits\":10", ""),
       "/layers/0/key/ids: is not packed; attribute 'packed' is 1"},
      {"a missing stream", relayout("\"values\"", "\"other\""), "/layers/0/key/values: is missing"},
      {"a stream too many", edit([&](Edit& f) {
         const std::string more =
             R"([{"name":"extra","type":"u8","row":[],"category":"ids"},)" + layout.substr(1);
         f.set("/", "layouts", std::vector{more, of_index});
         f.put("/totals", H5T_STD_U64LE, H5T_NATIVE_UINT64, {34, 2}, std::vector<uint64_t>(68));
       }),
       "/layers/0/key/extra: is not a stream of the codec sample"},
      {"another row shape", relayout("\"row\":[2,2]", "\"row\":[4]"),
       "/layers/0/key/values: is f32 with rows [4], payload, bound 0; the codec sample has f32 with rows [2, 2]"},
      {"another element type", relayout("\"u8\"", "\"u64\""), "/layers/0/key/flags: is u64 with rows []"},
      {"another category", relayout("\"offsets\"", "\"payload\""),
       "/layers/0/key/flags: is u8 with rows [], payload"},
      {"tokens are floats", edit([&](Edit& f) {
         std::string changed = of_index;
         changed.replace(changed.find("u32"), 3, "f32");
         f.set("/", "layouts", std::vector{layout, changed});
       }),
       "attribute 'layouts', 1: holds other streams than tokens and positions"},
      {"tokens are payload", edit([&](Edit& f) {
         std::string changed = of_index;
         changed.replace(changed.find("\"index\""), 7, "\"payload\"");
         f.set("/", "layouts", std::vector{layout, changed});
       }),
       "stream 'tokens': 'category' is 'payload'; index is wanted"},

      {"no data", edit([](Edit& f) { f.remove("/data"); }), "/data: is missing"},
      {"data of 16 bits", edit([](Edit& f) {
         f.put("/data", H5T_STD_U16LE, H5T_NATIVE_USHORT, {99}, std::vector<unsigned short>(99));
       }),
       "/data: is u16 [99]; u8 [99] is wanted"},
      {"hollow data", edit([](Edit& f) { f.put_hollow("/data", H5T_STD_U8LE, {hsize_t{1} << 50}, {4096}); }),
       "/data: claims"},
      {"no table of parts", edit([](Edit& f) { f.remove("/parts"); }), "/parts: is missing"},
      {"a table of fewer parts", edit([](Edit& f) {
         f.put("/parts", H5T_STD_U64LE, H5T_NATIVE_UINT64, {3, 5, 2}, std::vector<uint64_t>(30));
       }),
       "/parts: is u64 [3, 5, 2]; u64 [4, 5, 2] is wanted"},
      {"a table of zeros", edit([](Edit& f) {
         f.put("/parts", H5T_STD_U64LE, H5T_NATIVE_UINT64, {4, 5, 2}, std::vector<uint64_t>(40));
       }),
       "document 0: /parts gives it 0 bytes; a part of 2 streams has 29 or more"},
      {"no totals", edit([](Edit& f) { f.remove("/totals"); }), "/totals: is missing"},
      {"totals of fewer streams", edit([](Edit& f) {
         f.put("/totals", H5T_STD_U64LE, H5T_NATIVE_UINT64, {3, 2}, std::vector<uint64_t>(6));
       }),
       "/totals: is u64 [3, 2]; u64 [30, 2] is wanted"},
      {"totals of too much", edit([](Edit& f) {
         f.put("/totals", H5T_STD_U64LE, H5T_NATIVE_UINT64, {30, 2},
               std::vector<uint64_t>(60, uint64_t{1} << 50));
       }),
       "/totals: column 0: the streams have"},
      {"totals beyond 64 bits", edit([](Edit& f) {
         f.put("/totals", H5T_STD_U64LE, H5T_NATIVE_UINT64, {30, 2}, std::vector<uint64_t>(60, ~uint64_t{0}));
       }),
       "/totals: size "},

      {"a part beyond the data",
       edit_parts([](PartsFile& parts) { parts.place(1, 0).first = parts.data().size(); }),
       "/parts: the part of row 1, column 0 has"},
      {"a part beyond 64 bits", edit_parts([](PartsFile& parts) { parts.place(1, 0).first = ~uint64_t{0}; }),
       "/parts: the part of row 1, column 0 has"},
      {"a part larger than the data",
       edit_parts([](PartsFile& parts) { parts.place(1, 0).second = ~uint64_t{0}; }),
       "/parts: the part of row 1, column 0 has 18446744073709551615 bytes from"},
      {"a part of no bytes", edit_parts([](PartsFile& parts) { parts.place(1, 0).second = 0; }),
       key + "/parts gives it 0 bytes; a part of 6 streams has 33 or more"},
      {"a part of a few bytes", edit_parts([](PartsFile& parts) { parts.place(1, 0).second = 32; }),
       key + "/parts gives it 32 bytes"},
      {"a part that ends early", edit_parts([](PartsFile& parts) { --parts.place(1, 0).second; }),
       key + "no part ends at byte"},
      {"a part that begins late", edit_parts([](PartsFile& parts) {
         ++parts.place(1, 0).first;
         --parts.place(1, 0).second;
       }),
       "/layers/0/key/values: document 0: 5 rows do not fit the part"},
      {"a part that begins early", edit_parts([](PartsFile& parts) {
         --parts.place(1, 4).second;
         --parts.place(1, 0).first;
         ++parts.place(1, 0).second;
       }),
       "document 0: "},
      {"parts of two documents interchanged", edit_parts([](PartsFile& parts) {
         std::swap(parts.place(1, 0).first, parts.place(3, 0).first);
         std::swap(parts.place(1, 0).second, parts.place(3, 0).second);
       }),
       key + "/parts leads to the part of document 2, side 0, in place of side 0"},
      {"parts of two sides interchanged", edit_parts([](PartsFile& parts) {
         std::swap(parts.place(1, 0).first, parts.place(1, 3).first);
         std::swap(parts.place(1, 0).second, parts.place(1, 3).second);
       }),
       key + "/parts leads to the part of document 0, side 3, in place of side 0"},
      {"a part of a document for what all share", edit_parts([](PartsFile& parts) {
         parts.place(0, 0).first = parts.place(1, 0).first;
         parts.place(0, 0).second = parts.place(1, 0).second;
       }),
       "/layers/0/key: /parts leads to the part of document 0, side 0"},
      {"two sides at one place", edit_parts([](PartsFile& parts) {
         parts.place(1, 2).first = parts.place(1, 0).first;
         parts.place(1, 2).second = parts.place(1, 0).second;
       }),
       "/parts: row 1: two parts have the byte"},

      {"a footer of another document", edit_part(1, 0, [](RawPart& part) { part.row = 7; }),
       key + "/parts leads to the part of document 6, side 0"},
      {"a footer of fewer streams", edit_part(1, 0, [](RawPart& part) { part.rows.pop_back(); }),
       key + "the part has 5 streams; the side has 6"},
      {"a footer of more rows", edit_part(1, 0, [](RawPart& part) { part.rows[0] = 100000; }),
       "/layers/0/key/flags: document 0: 100000 rows do not fit the part of"},
      {"a footer of rows beyond 64 bits", edit_part(1, 0, [](RawPart& part) { part.rows[4] = ~uint64_t{0}; }),
       "/layers/0/key/values: document 0: size "},
      {"a footer of packed rows beyond 64 bits",
       edit_part(1, 0, [](RawPart& part) { part.rows[1] = ~uint64_t{0} / 3; }),
       "/layers/0/key/ids: document 0: "},
      {"a footer of fewer rows", edit_part(1, 0, [](RawPart& part) { --part.rows[0]; }),
       key + "the streams have"},
      {"a footer without digests", edit_part(1, 0, [](RawPart& part) { part.digests.clear(); }),
       key + "the streams have"},
      {"a footer of too many digests", edit_part(1, 0, [](RawPart& part) { part.digests.resize(64); }),
       key + "the streams have"},
      {"a digest that does not hold", edit_part(1, 0, [](RawPart& part) { part.digests[3] ^= 1; }),
       key + "the digest of bytes 0 to"},
      {"an id beyond the bound",
       edit_part(1, 0,
                 [](RawPart& part) {
                   // All bits set: 1023 of 10 bits, where 1000 is the bound. The ids lie behind a byte per token.
                   std::fill_n(part.body.begin() + 5, (part.rows[1] * 30 + 7) / 8,
                               static_cast<unsigned char>(0xff));
                   part.make_digests();
                 }),
       "/layers/0/key/ids: document 0: "},
      {"fewer tokens than the document",
       edit_part(1, 4,
                 [](RawPart& part) {
                   part.rows = {4, 4};
                   part.body.resize(32);
                   part.make_digests();
                 }),
       "/tokens: document 0 has 4; /documents/offset says 5"},
      {"a position twice in a part",
       edit_part(1, 4,
                 [](RawPart& part) {
                   part.body[part.body.size() - 4] = 3;  // of 0 1 2 3 4
                   part.make_digests();
                 }),
       "/positions: document 0 ('document 0'): position 3 is followed by 3 (its tokens 3 and 4)"},
      {"fewer positions than the document",
       edit_part(1, 4,
                 [](RawPart& part) {
                   part.rows = {5, 4};
                   part.body.resize(36);
                   part.make_digests();
                 }),
       "/positions: document 0 has 4; /documents/offset says 5"},
      {"a bit of a body",
       [](const std::string& path) {
         flip_byte(path, chunk_address(path, "/data", 0) + PartsFile(path).place(1, 3).first + 2);
       },
       "/layers/2/value: document 0: the digest of bytes 0 to"},
      {"a bit of a footer",
       [](const std::string& path) {
         const std::pair<uint64_t, uint64_t> place = PartsFile(path).place(1, 3);
         flip_byte(path, chunk_address(path, "/data", 0) + place.first + place.second - 30);
       },
       "/layers/2/value: document 0: the digest of the footer does not hold: the file is damaged"},
      {"a bit of what all share",
       [](const std::string& path) {
         flip_byte(path, chunk_address(path, "/data", 0) + PartsFile(path).place(0, 2).first + 2);
       },
       "/layers/2/key: the digest of bytes 0 to 15 (table) does not hold: the file is damaged"},

      {"embedded book of another digest",
       edit([](Edit& f) { f.set("/", "book_digest", std::string("abc")); }), "/book: has the digest"},
      {"embedded book damaged", edit([](Edit& f) {
         f.put_floats("/book/key/atoms", {3, 2}, std::vector<float>(6));
       }),
       "/book: the digest does not hold"},
  };
  check_defects([&](const std::string& path) { sample.write(path, 1, &book); }, read_codes,
                join(common_defects("kv", "codes"),
                     document_defects("/tokens: document 2 has 3; /documents/offset says 4"), own));
}

TEST_CASE("malformed: parts of a codes file that lie in each other are seen when it is counted") {
  const Folder folder;
  const SampleCodes sample(4, {5, 3}, false, 1);
  sample.write(folder / "bad.h5");
  PartsFile parts(folder / "bad.h5");
  // The second document's part: all of the first one's as flags, with a footer that says so.
  RawPart outer = parts.get(2, 0);
  const auto [begin, size] = parts.place(1, 0);
  outer.body.assign(parts.data().begin() + static_cast<ptrdiff_t>(begin),
                    parts.data().begin() + static_cast<ptrdiff_t>(begin + size));
  outer.rows = {outer.body.size(), 0, 0, 0, 0, 0};
  outer.make_digests();
  parts.put(2, 0, outer);
  parts.place(1, 0).first = parts.place(2, 0).first;
  parts.save();
  const CodesReader reader(folder / "bad.h5");
  CHECK(reader.document(Side::key, 0, 0)->rows("flags") == 5);
  CHECK_THROWS_WITH_AS(reader.ledger(), doctest::Contains("/parts: two parts have the byte"), Error);
}

TEST_CASE("malformed: pieces of a codes file that are lost, interchanged or inverted are found") {
  const Folder folder;
  const std::string good = folder / "good.h5", bad = folder / "bad.h5";
  constexpr uint64_t kTokens = 1000;  // 256,000 bytes a side: three whole pieces and one that is not
  const CodecEntry& entry = find_codec("none");
  const CodecContext context{.num_layers = 1, .heads = 2, .head_dim = 64};
  const auto codec = entry.make(*entry.make_options(), context);
  CodesInfo info;
  info.model = sample_model(1, 2, 64);
  info.codec = "none";
  info.parameters = codec->parameters();
  info.groups = {0};
  for (const char* name : {"a", "b"}) info.documents.add(name, kTokens);
  {
    OutputFile output(good, false);
    CodesWriter writer(output, info, *codec, {{}, counting(0, 2 * kTokens)});
    for (const Side side : kSides)
      for (const size_t d : {0, 1}) {
        Matrix<float> rows = random_rows(kTokens, 128, 2 * d + (side == Side::value));
        rows(1, 1) = 0;
        codec->append(usual_group(0, 1, 2, 64, side), rows, writer.document(side, 0, d));
      }
    writer.finish({"t", {}});
    output.commit();
  }
  constexpr ptrdiff_t kPiece = 65536;
  const auto piece = [](PartsFile& parts, uint64_t row, uint64_t column, ptrdiff_t number) {
    return parts.data().begin() + static_cast<ptrdiff_t>(parts.place(row, column).first) + number * kPiece;
  };
  const auto swap = [](auto a, auto b) {
    REQUIRE(!std::equal(a, a + kPiece, b));
    std::swap_ranges(a, a + kPiece, b);
  };
  const std::vector<std::pair<std::string, std::function<void(PartsFile&)>>> damages{
      {"a piece lost",
       [&](PartsFile& p) { std::fill_n(piece(p, 1, 0, 1), kPiece, static_cast<unsigned char>(0)); }},
      {"the last piece lost",
       [&](PartsFile& p) {
         std::fill_n(piece(p, 1, 0, 3), 256000 - 3 * kPiece, static_cast<unsigned char>(0));
       }},
      {"a part lost",
       [&](PartsFile& p) {
         std::fill_n(piece(p, 1, 0, 0), p.place(1, 0).second, static_cast<unsigned char>(0));
       }},
      {"pieces of a part", [&](PartsFile& p) { swap(piece(p, 1, 0, 0), piece(p, 1, 0, 2)); }},
      {"pieces of two documents", [&](PartsFile& p) { swap(piece(p, 1, 0, 1), piece(p, 2, 0, 1)); }},
      {"pieces of two sides", [&](PartsFile& p) { swap(piece(p, 1, 0, 1), piece(p, 1, 1, 1)); }},
      {"whole parts of two documents",
       [&](PartsFile& p) {
         REQUIRE(p.place(1, 0).second == p.place(2, 0).second);
         std::swap_ranges(piece(p, 1, 0, 0), piece(p, 1, 0, 0) + static_cast<ptrdiff_t>(p.place(1, 0).second),
                          piece(p, 2, 0, 0));
       }},
      {"0 to 65535",
       [&](PartsFile& p) {
         const auto value = piece(p, 1, 0, 0) + 2 * 129;  // of token 1, channel 1
         REQUIRE(value[0] == 0);
         REQUIRE(value[1] == 0);
         value[0] = value[1] = 0xff;
       }},
  };
  for (const auto& damage_case : damages) {
    const std::string& name = damage_case.first;
    const auto& damage = damage_case.second;
    CAPTURE(name);
    std::filesystem::copy_file(good, bad, std::filesystem::copy_options::overwrite_existing);
    PartsFile parts(bad);
    damage(parts);
    parts.save();
    const CodesReader reader(bad);
    reader.ledger();
    const auto read = [&](Side side, size_t d) {
      Matrix<float> rows(kTokens, 128);
      const auto streams = reader.document(side, 0, d);
      codec->open(usual_group(0, 1, 2, 64, side), *streams)->decode(0, rows);
    };
    CHECK_THROWS_WITH_AS(read(Side::key, 0), doctest::Contains("bad.h5: /layers/0/key: document 0: "), Error);
    CHECK_NOTHROW(read(Side::value, 1));
  }
}

TEST_CASE(
    "malformed: any byte of a file may be wrong without a crash, and no wrong value comes out unnoticed (long)") {
  const Folder folder;
  const std::string good = folder / "good.h5", bad = folder / "bad.h5";
  write_sample_kv(good);
  const auto values = [](const std::string& path) {
    const KvReader reader(path);
    Matrix<float> rows(8, 32);
    reader.read(usual_group(0, 2, 2, 4, Side::key), 0, rows.view().columns(0, 16));
    reader.read(usual_group(0, 2, 2, 4, Side::value), 0, rows.view().columns(16, 16));
    return std::vector<float>(rows.data(), rows.data() + rows.size());
  };
  CHECK_GT(refused_share(good, bad, kDamageStride, values), 0.25);
}

TEST_CASE(
    "malformed: any byte of a codes file may be wrong without a crash, and no wrong value comes out unnoticed (long)") {
  const Folder folder;
  const std::string good = folder / "good.h5", bad = folder / "bad.h5";
  const SampleCodes sample(4, {5, 0, 2}, true, 1);
  sample.write(good);
  const auto values = [&](const std::string& path) {
    const CodesReader reader(path);
    std::vector<std::vector<std::byte>> found;
    const auto keep = [&]<class T>(const std::vector<T>& numbers) {
      const auto bytes = std::as_bytes(std::span(numbers));
      found.emplace_back(bytes.begin(), bytes.end());
    };
    keep(reader.tokens(0, 7));
    keep(reader.positions(0, 7));
    reader.check_streams(sample.codec);
    for (const Side side : kSides)
      for (const size_t d : {0, 1, 2}) {
        const auto document = reader.document(side, 0, d);
        for (const StreamSpec& spec : sample.codec.streams(sample.shape(0, side))) {
          auto& bytes = found.emplace_back(document->rows(spec.name) * spec.row_bytes());
          document->read(spec.name, 0, document->rows(spec.name), bytes);
        }
      }
    return found;
  };
  CHECK_GT(refused_share(good, bad, kDamageStride, values), 0.25);
}

}  // namespace malformed_test
