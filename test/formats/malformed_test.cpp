// One damaged file per named defect: each must be refused with one line that names the file, the object and
// what would be right.
#include <functional>
#include <limits>

#include "formats/book_file.hpp"
#include "test/formats/edit.hpp"
#include "test/formats/folder.hpp"
#include "test/formats/samples.hpp"
#include "test/test.hpp"

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
      {"type is a number", edit([](Edit& f) { f.set("/", "kvcodec_type", int64_t{3}); }),
       "attribute 'kvcodec_type' is no string"},
      {"newer version", edit([](Edit& f) { f.set("/", "kvcodec_version", int64_t{2}); }),
       "file of version 2; kvcodec"},
      {"version 0", edit([](Edit& f) { f.set("/", "kvcodec_version", int64_t{0}); }),
       "attribute 'kvcodec_version' is 0"},
      {"version is text", edit([](Edit& f) { f.set("/", "kvcodec_version", std::string("1")); }),
       "attribute 'kvcodec_version' is no integer"},
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
      {"heads that do not divide", edit([](Edit& f) { f.set("/", "num_q_heads", int64_t{3}); }),
       "no multiple of num_kv_heads 2"},
      {"theta not a number",
       edit([](Edit& f) { f.set("/", "rope_theta", std::numeric_limits<double>::quiet_NaN()); }),
       "attribute 'rope_theta' is nan"},
      {"unknown key state", edit([](Edit& f) { f.set("/", "key_state", std::string("sideways")); }),
       "attribute 'key_state' is 'sideways'"},
  };
}

std::vector<Defect> document_defects() {
  return {
      {"no documents", edit([](Edit& f) { f.remove("/documents"); }), "/documents/name: is missing"},
      {"no offsets", edit([](Edit& f) { f.remove("/documents/offset"); }), "/documents/offset: is missing"},
      {"offsets beyond the tokens", edit([](Edit& f) {
         f.put("/documents/offset", {0, 5, 5, 9});
       }),
       "the documents have 9 tokens"},
      {"huge offsets", edit([](Edit& f) {
         f.put("/documents/offset", {0, 5, 5, uint64_t{1} << 62});
       }),
       "the documents have 4611686018427387904 tokens"},
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
      {"layers is a dataset", edit([](Edit& f) { f.put("/layers", {1}); }), "/layers: is no group"},
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
       "/layers/1/key: is no dataset"},
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
      {"more queries than positions", edit([](Edit& f) { f.put("/query_position", {4}); }),
       "/layers/0/query: is bf16 [2, 4, 4]; bf16 [1, 4, 4] is wanted"},
  };
  check_defects([](const std::string& path) { write_sample_kv(path); }, read_kv,
                join(common_defects("codes", "kv"), document_defects(), own));
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
       "attribute 'parameters': is no JSON object"},
      {"parameters are nested", edit([](Edit& f) { f.set("/", "parameters", std::string(R"({"a":[1]})")); }),
       "attribute 'parameters': parameter 'a' is neither"},
      {"parameters too large",
       edit([](Edit& f) { f.set("/", "parameters", std::string(R"({"a":18446744073709551615})")); }),
       "parameter 'a' does not fit 64 bits"},
      {"array outside", edit([](Edit& f) { f.set("/", "arrays", std::string("../key/atoms")); }),
       "attribute 'arrays' has '../key/atoms', which is no name"},
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

TEST_CASE("malformed: codes files") {
  SampleCodes sample(2, {5, 0, 3}, true, 1);
  const Book book = sample_book();
  sample.info.book_type = book.type;
  sample.info.book_digest = book.digest();
  sample.info.book_bytes = book.size_bytes();
  // The number of "ids" rows of this sample, to make offsets that do not fit it.
  const uint64_t rows = sample.encoded(0, Side::key).document(0).rows("ids") +
                        sample.encoded(0, Side::key).document(2).rows("ids");
  REQUIRE(rows > 2);
  const std::string ids = "/layers/0/key/ids";
  const std::vector<Defect> own{
      {"no side", edit([](Edit& f) { f.remove("/layers/2/value"); }), "/layers/2/value: is missing"},
      {"a group that does not fit", edit([](Edit& f) { f.rename("/layers/2", "/layers/1"); }),
       "/layers/0: a group of 2 layers does not fit before layer 1"},
      {"a group at the end", edit([](Edit& f) { f.rename("/layers/2", "/layers/3"); }),
       "/layers/3: a group of 2 layers does not fit before layer 4"},
      {"no codec", edit([](Edit& f) { f.remove_attribute("/", "codec"); }), "attribute 'codec' is missing"},
      {"parameters are no JSON", edit([](Edit& f) { f.set("/", "parameters", std::string("nonsense")); }),
       "attribute 'parameters': is no JSON object"},
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
      {"a missing stream", edit([](Edit& f) { f.remove("/layers/2/key/values"); }),
       "/layers/2/key/values: is missing"},
      {"a stream too many", edit([](Edit& f) {
         f.put("/layers/2/key/extra", std::vector<uint64_t>(8));
         f.set("/layers/2/key/extra", "category", std::string("payload"));
       }),
       "/layers/2/key/extra: is no stream of the codec sample"},
      {"a name that is none",
       edit([](Edit& f) { f.rename("/layers/2/key/values", "/layers/2/key/The values"); }),
       "/layers/2/key/The values: is no name of a stream"},
      {"another row shape", edit([](Edit& f) {
         f.put_floats("/layers/0/value/values", {8, 4}, std::vector<float>(32));
         f.set("/layers/0/value/values", "category", std::string("payload"));
       }),
       "/layers/0/value/values: is f32 with rows [4], payload, bound 0; the codec sample has f32 with rows "
       "[2, 2]"},
      {"another element type", edit([](Edit& f) {
         f.put("/layers/0/value/flags", std::vector<uint64_t>(8));
         f.set("/layers/0/value/flags", "category", std::string("offsets"));
       }),
       "/layers/0/value/flags: is u64 with rows []"},
      {"another category",
       edit([](Edit& f) { f.set("/layers/0/value/flags", "category", std::string("payload")); }),
       "/layers/0/value/flags: is u8 with rows [], payload"},
      {"an unknown category",
       edit([](Edit& f) { f.set("/layers/0/value/flags", "category", std::string("junk")); }),
       "attribute 'category' is 'junk'"},
      {"no category", edit([](Edit& f) { f.remove_attribute("/layers/0/value/flags", "category"); }),
       "/layers/0/value/flags: attribute 'category' is missing"},
      {"rows missing", edit([](Edit& f) {
         f.put("/layers/0/value/flags", H5T_STD_U8LE, H5T_NATIVE_UCHAR, {7}, std::vector<unsigned char>(7));
         f.set("/layers/0/value/flags", "category", std::string("offsets"));
       }),
       "/layers/0/value/flags: has 7 rows; the documents have 8"},
      {"fewer tokens than the document", edit([&](Edit& f) {
         f.put("/layers/0/value/flags.offset", {0, 4, 4, 8});
       }),
       "/layers/0/value: document 0 has 4 tokens; /documents/offset says 5"},
      {"row offsets that fall", edit([&](Edit& f) {
         f.put(ids + ".offset", {0, 2, 1, rows});
       }),
       ids + ".offset: does not rise from 0"},
      {"row offsets beyond the rows", edit([&](Edit& f) {
         f.put(ids + ".offset", {0, 1, 1, rows + 8});
       }),
       ids + ": has "},
      {"row offsets beyond 64 bits", edit([&](Edit& f) {
         f.put(ids + ".offset", {0, 1, 1, uint64_t{1} << 62});
       }),
       ids + ": size "},
      {"too few row offsets", edit([&](Edit& f) {
         f.put(ids + ".offset", {0, rows});
       }),
       ids + ".offset: has 2 elements; 3 documents have 4"},
      {"packed to another width", edit([&](Edit& f) { f.set(ids, "packed_bits", int64_t{9}); }),
       ids + ": attribute 'packed_bits' is 9; u16 below 1000 take 10"},
      {"packed to 33 bits", edit([&](Edit& f) { f.set(ids, "packed_bits", int64_t{33}); }),
       ids + ": attribute 'packed_bits' is 33; 1 to 32"},
      {"packed without a bound", edit([&](Edit& f) { f.remove_attribute(ids, "index_bound"); }),
       ids + ": attribute 'packed_bits' is 10"},
      {"packed floats", edit([&](Edit& f) { f.set(ids, "element_type", std::string("f32")); }),
       ids + ": attribute 'packed_bits' is 10"},
      {"packed without a shape", edit([&](Edit& f) { f.remove_attribute(ids, "row_shape"); }),
       ids + ": attribute 'row_shape' is missing"},
      {"packed bytes missing",
       edit([&](Edit& f) { f.put(ids, H5T_STD_U8LE, H5T_NATIVE_UCHAR, {3}, std::vector<unsigned char>(3)); }),
       ids + ": attribute 'category' is missing"},
      {"an id beyond the bound",
       [&](const std::string& path) {
         // All bits set: 1023 of 10 bits, where 1000 is the bound.
         Edit f(path);
         std::vector<unsigned char> bytes;
         for (const size_t d : {0, 2})
           bytes.resize(bytes.size() + (sample.encoded(0, Side::key).document(d).rows("ids") * 30 + 7) / 8,
                        0xff);
         f.put(ids, H5T_STD_U8LE, H5T_NATIVE_UCHAR, {bytes.size()}, bytes);
         f.set(ids, "category", std::string("ids"));
         f.set(ids, "index_bound", int64_t{1000});
         f.set(ids, "packed_bits", int64_t{10});
         f.set(ids, "element_type", std::string("u16"));
         const hid_t object = Edit::check(H5Oopen(f.file(), ids.c_str(), H5P_DEFAULT));
         const hsize_t one = 1;
         const hid_t space = H5Screate_simple(1, &one, nullptr);
         const hid_t shape =
             Edit::check(H5Acreate2(object, "row_shape", H5T_STD_U64LE, space, H5P_DEFAULT, H5P_DEFAULT));
         const uint64_t three = 3;
         H5Awrite(shape, H5T_NATIVE_UINT64, &three);
         H5Aclose(shape);
         H5Sclose(space);
         H5Oclose(object);
       },
       ids + ": document 0: "},
      {"embedded book of another digest",
       edit([](Edit& f) { f.set("/", "book_digest", std::string("abc")); }), "/book: has the digest"},
      {"embedded book damaged", edit([](Edit& f) {
         f.put_floats("/book/key/atoms", {3, 2}, std::vector<float>(6));
       }),
       "/book: the digest does not hold"},
      {"checksum",
       [](const std::string& path) { flip_byte(path, chunk_address(path, "/layers/2/value/values", 0) + 5); },
       "/layers/2/value/values: checksum of rows 0 to 7 does not hold"},
  };
  check_defects([&](const std::string& path) { sample.write(path, 1, &book); }, read_codes,
                join(common_defects("kv", "codes"), document_defects(), own));
}

TEST_CASE(
    "malformed: any byte of a file may be wrong without a crash, and no wrong value comes out unnoticed") {
  const Folder folder;
  const std::string good = folder / "good.h5", bad = folder / "bad.h5";
  write_sample_kv(good);
  const size_t size = file_bytes(good).size();
  const auto values = [](const std::string& path) {
    const KvReader reader(path);
    Matrix<float> rows(8, 32);
    reader.read(GroupShape{0, 2, 2, 4, Side::key}, 0, rows.view().columns(0, 16));
    reader.read(GroupShape{0, 2, 2, 4, Side::value}, 0, rows.view().columns(16, 16));
    return std::vector<float>(rows.data(), rows.data() + rows.size());
  };
  const auto expected = values(good);
  size_t refused = 0;
  for (size_t position = 0; position < size; ++position) {
    CAPTURE(position);
    std::filesystem::copy_file(good, bad, std::filesystem::copy_options::overwrite_existing);
    flip_byte(bad, position);
    try {
      const auto found = values(bad);  // outside of CHECK, which would keep the exception
      CHECK(found == expected);
    } catch (const Error& error) {
      ++refused;
      CHECK(static_cast<int>(error.kind()) == static_cast<int>(ErrorKind::bad_input));
    }
  }
  CHECK(refused > size / 4);
}
