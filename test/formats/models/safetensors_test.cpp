#include "formats/models/safetensors.hpp"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>

#include <unistd.h>

#include "formats/io/json_file.hpp"
#include "lib/core/error.hpp"
#include "test/formats/refusal.hpp"
#include "test/test.hpp"

namespace safetensors_test {

using namespace kvcodec;
using test::message_of;
using test::refusal_of;

namespace {

/// A folder of its own for one test case.
class Folder {
 public:
  Folder()
      : path_(std::filesystem::temp_directory_path() /
              ("kvcodec-safetensors-" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string path() const { return path_; }
  std::string file(const std::string& name) const { return path_ / name; }
  void write(const std::string& name, const std::string& bytes) const {
    std::ofstream(file(name), std::ios::binary) << bytes;
  }

 private:
  std::filesystem::path path_;
};

std::string with_length(const std::string& header, const std::string& data, uint64_t length) {
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + data;
}
std::string file_of(const std::string& header, const std::string& data) {
  return with_length(header, data, header.size());
}

using J = nlohmann::json;

J tensor(const char* dtype, std::vector<int64_t> shape, int64_t begin, int64_t end) {
  return {{"dtype", dtype}, {"shape", shape}, {"data_offsets", {begin, end}}};
}

/// Two tensors: a, (2, 3) f32, and b, (2) bf16.
J two() { return {{"a", tensor("F32", {2, 3}, 0, 24)}, {"b", tensor("BF16", {2}, 24, 28)}}; }
std::string data_of_two() {
  const float a[] = {1, 2, 3, 4, 5, -6.5f};
  const uint16_t b[] = {0x3f80, 0xc000};  // 1, -2
  std::string data(28, '\0');
  std::memcpy(data.data(), a, 24);
  std::memcpy(data.data() + 24, b, 4);
  return data;
}

/// The message with which a file of these bytes is refused, without the file's name, which it must begin
/// with.
std::string refused(const Folder& folder, const std::string& bytes) {
  const std::string name = folder.file("x.safetensors");
  std::filesystem::remove(name);
  folder.write("x.safetensors", bytes);
  return refusal_of(name, [&] { Safetensors::open_file(name); });
}
std::string refused_header(const Folder& folder, const J& header) {
  return refused(folder, file_of(header.dump(), data_of_two()));
}

}  // namespace

TEST_CASE("safetensors: tensors come as they lie in the file") {
  const Folder folder;
  J header = two();
  header["__metadata__"] = {{"format", "pt"}};
  header["empty"] = tensor("F16", {0, 7}, 28, 28);
  header["mask"] = tensor("BOOL", {0}, 28, 28);
  for (const size_t spaces : {0, 1, 3}) {  // writers align the data with spaces; not all do
    folder.write("x.safetensors", file_of(header.dump() + std::string(spaces, ' '), data_of_two()));
    const Safetensors file = Safetensors::open_file(folder.file("x.safetensors"));
    CHECK_EQ(file.names(), std::vector<std::string>{"a", "b", "empty", "mask"});
    const TensorView* a = file.find("a");
    REQUIRE(a);
    CHECK_EQ(a->type, TensorType::f32);
    CHECK_EQ(a->shape, std::vector<uint64_t>{2, 3});
    CHECK_EQ(read_floats(*a), std::vector<float>{1, 2, 3, 4, 5, -6.5f});
    CHECK_EQ(read_floats(*file.find("b")), std::vector<float>{1, -2});
    CHECK(read_floats(*file.find("empty")).empty());
    CHECK_EQ(file.find("c"), nullptr);
    CHECK_EQ(get_tensor(file, "a", {2, 3}).bytes.size(), 24);
    CHECK_EQ(
        message_of([&] {
          get_tensor(file, "a", {3, 2});
        }),
        folder.file("x.safetensors") + ": tensor 'a': shape is [2, 3]; the configuration makes it [3, 2]");
    CHECK_EQ(message_of([&] {
               get_tensor(file, "c", {3, 2});
             }),
             folder.file("x.safetensors") + ": tensor 'c' is missing; it must have shape [3, 2]");
    CHECK_EQ(
        message_of([&] { file.find("mask"); }),
        folder.file("x.safetensors") + ": tensor 'mask': dtype is BOOL; supported are F32, F16 and BF16");
  }
}

TEST_CASE("safetensors: malformed files, one per defect") {
  const Folder folder;
  const std::string data = data_of_two(), good = two().dump();
  const auto changed = [](const std::function<void(J&)>& change) {
    J header = two();
    change(header);
    return header;
  };
  CHECK_EQ(refused(folder, file_of(good, data)), "accepted");
  CHECK_EQ(refused(folder, ""), "has 0 bytes; a safetensors file begins with 8 bytes of header length");
  CHECK_EQ(refused(folder, "1234567"),
           "has 7 bytes; a safetensors file begins with 8 bytes of header length");
  CHECK_EQ(
      refused(folder, with_length(good, "", good.size() + 1)),
      fmt::format("header length is {}, but only {} bytes follow; it is truncated or no safetensors file",
                  good.size() + 1, good.size()));
  CHECK_EQ(refused(folder, with_length("", "", UINT64_MAX)),
           "header length is 18446744073709551615, but only 0 bytes follow; it is truncated or no "
           "safetensors file");
  CHECK_EQ(refused(folder, with_length("", "", 0)), "header: not JSON from byte 1 on");
  CHECK_EQ(refused(folder, file_of("{\"a\":", data)), "header: not JSON from byte 6 on");
  CHECK_EQ(refused(folder, file_of("[]", "")), "header: holds a JSON array; it must be an object");
  CHECK_EQ(
      refused(
          folder,
          file_of(
              R"({"a":{"dtype":"U8","shape":[],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[],"data_offsets":[0,1]}})",
              "x")),
      "header: field 'a' is there twice");

  CHECK_EQ(refused_header(folder, changed([](J& h) { h["b"] = 5; })),
           "tensor 'b': is a JSON number; it must be an object");
  CHECK_EQ(refused_header(folder, changed([](J& h) { h["b"].erase("dtype"); })),
           "tensor 'b': dtype is missing; it must be a string such as \"BF16\"");
  CHECK_EQ(refused_header(folder, changed([](J& h) { h["b"].erase("shape"); })),
           "tensor 'b': shape is missing; it must be a list of whole numbers");
  CHECK_EQ(refused_header(folder, changed([](J& h) { h["b"].erase("data_offsets"); })),
           "tensor 'b': data_offsets is missing; it must be a list of whole numbers");
  CHECK_EQ(refused_header(folder, changed([](J& h) { h["b"]["shape"] = {-2}; })),
           "tensor 'b': shape holds -2; it must hold whole numbers");
  CHECK_EQ(refused_header(folder, changed([](J& h) { h["b"]["shape"] = {2.0}; })),
           "tensor 'b': shape holds 2.0; it must hold whole numbers");
  CHECK_EQ(refused_header(folder, changed([](J& h) {
                            h["b"]["data_offsets"] = {28, 24};
                          })),
           "tensor 'b': data_offsets are [28, 24]; they must be a begin and an end, in this order");
  CHECK_EQ(refused_header(folder, changed([](J& h) { h["b"]["data_offsets"] = {24}; })),
           "tensor 'b': data_offsets are [24]; they must be a begin and an end, in this order");
  CHECK_EQ(refused_header(folder, changed([](J& h) {
                            h["b"]["data_offsets"] = {24, 29};
                          })),
           "tensor 'b': data_offsets end at 29, but the file has 28 bytes of data; is it truncated?");
  CHECK_EQ(refused(folder, file_of(good, data.substr(0, 27))),
           "tensor 'b': data_offsets end at 28, but the file has 27 bytes of data; is it truncated?");
  CHECK_EQ(refused_header(folder, changed([](J& h) {
                            h["a"]["shape"] = {3, 3};
                          })),
           "tensor 'a': shape [3, 3] of F32 takes 36 bytes; data_offsets give it 24");
  CHECK_EQ(refused_header(folder, changed([](J& h) { h["b"]["dtype"] = "F32"; })),
           "tensor 'b': shape [2] of F32 takes 8 bytes; data_offsets give it 4");
  CHECK_EQ(refused_header(folder, changed([](J& h) {
                            h["a"]["shape"] = {uint64_t{1} << 40, uint64_t{1} << 40};
                          })),
           "tensor 'a': size 1099511627776 x 1099511627776 does not fit 64 bits");
  CHECK_EQ(refused_header(folder, changed([](J& h) { h["a"]["shape"] = {uint64_t{1} << 63}; })),
           "tensor 'a': size 9223372036854775808 x 4 does not fit 64 bits");
  CHECK_EQ(refused_header(folder, changed([](J& h) { h["b"] = tensor("BF16", {2}, 22, 26); })),
           "tensor 'b': begins at byte 22 of the data, inside the tensor before it, which ends at 24");
  CHECK_EQ(
      refused_header(folder, changed([](J& h) { h["b"] = tensor("BF16", {1}, 26, 28); })),
      "tensor 'b': begins at byte 26 of the data, but the tensor before it ends at 24; gaps are not allowed");
  CHECK_EQ(refused(folder, file_of(good, data + "x")), "has 29 bytes of data; its tensors end at byte 28");
  J newline = two();
  newline["b\nc"] = newline["b"];
  newline.erase("b");
  newline["b\nc"]["shape"] = {3};
  CHECK_EQ(refused_header(folder, newline),
           "tensor 'b\\x0ac': shape [3] of BF16 takes 6 bytes; data_offsets give it 4");
  // An unknown type may be present as long as nobody requests it.
  folder.write("x.safetensors", file_of(changed([](J& h) { h["b"]["dtype"] = "F4"; }).dump(), data));
  const Safetensors file = Safetensors::open_file(folder.file("x.safetensors"));
  CHECK_EQ(message_of([&] { file.find("b"); }),
           folder.file("x.safetensors") + ": tensor 'b': dtype is F4; supported are F32, F16 and BF16");
}

TEST_CASE("safetensors: shards of a model directory") {
  const Folder folder;
  const std::string data = data_of_two();
  folder.write("one.safetensors", file_of(J{{"a", tensor("F32", {2, 3}, 0, 24)}}.dump(), data.substr(0, 24)));
  folder.write("two.safetensors", file_of(J{{"b", tensor("BF16", {2}, 0, 4)}}.dump(), data.substr(24)));
  const auto with_map = [&](const J& map) {
    folder.write("model.safetensors.index.json",
                 J{{"metadata", {{"total_size", 28}}}, {"weight_map", map}}.dump());
    return message_of([&] { Safetensors::open_model(folder.path()); });
  };
  const J map = {{"a", "one.safetensors"}, {"b", "two.safetensors"}};
  CHECK_EQ(with_map(map), "accepted");
  {
    const Safetensors model = Safetensors::open_model(folder.path());
    CHECK_EQ(model.names(), std::vector<std::string>{"a", "b"});
    CHECK_EQ(read_floats(*model.find("a")), std::vector<float>{1, 2, 3, 4, 5, -6.5f});
    CHECK_EQ(read_floats(*model.find("b")), std::vector<float>{1, -2});
    CHECK_EQ(model.find("b")->origin, folder.file("two.safetensors") + ": tensor 'b'");
    CHECK_EQ(message_of([&] { get_tensor(model, "c", {1}); }),
             folder.file("model.safetensors.index.json") + ": tensor 'c' is missing; it must have shape [1]");
  }
  const std::string index = folder.file("model.safetensors.index.json");
  CHECK_EQ(with_map({{"a", "one.safetensors"}, {"b", "three.safetensors"}}),
           folder.file("three.safetensors") +
               ": is missing; model.safetensors.index.json says that it holds tensor 'b'");
  CHECK_EQ(with_map({{"a", "one.safetensors"}, {"c", "two.safetensors"}}),
           folder.file("two.safetensors") +
               ": tensor 'c' is missing; model.safetensors.index.json says that it is there");
  for (const char* name : {"../one.safetensors", "/etc/passwd", "..", "", "sub/one.safetensors"})
    CHECK_EQ(with_map({{"a", name}}),
             index + ": tensor 'a': file '" + name + "' is not the name of a file in that directory");
  const std::string long_name(300, 'x');  // longer than a name can be
  CHECK_EQ(
      with_map({{"a", long_name}}),
      folder.file(long_name) + ": is missing; model.safetensors.index.json says that it holds tensor 'a'");
  CHECK_EQ(with_map({{"a", 5}}), index + ": tensor 'a': its file must be a string");
  CHECK_EQ(with_map("all"), index + ": weight_map is missing; it must say which file holds which tensor");
  folder.write("model.safetensors.index.json", "{");
  CHECK_EQ(message_of([&] { Safetensors::open_model(folder.path()); }), index + ": not JSON from byte 2 on");

  CHECK_EQ(with_map(map), "accepted");
  folder.write("two.safetensors", file_of(J{{"b", tensor("BF16", {2}, 0, 4)}}.dump(), data.substr(24, 3)));
  CHECK_EQ(message_of([&] { Safetensors::open_model(folder.path()); }),
           folder.file("two.safetensors") +
               ": tensor 'b': data_offsets end at 4, but the file has 3 bytes of data; is it truncated?");
}

TEST_CASE("safetensors: a directory without them") {
  const Folder folder;
  const auto message = [&] { return message_of([&] { Safetensors::open_model(folder.path()); }); };
  const std::string neither =
      folder.path() + ": has neither model.safetensors nor model.safetensors.index.json";
  CHECK_EQ(message(), neither);
  folder.write("pytorch_model.bin", "x");
  CHECK_EQ(message(), neither + " (there is pytorch_model.bin; only safetensors are read)");
  CHECK_EQ(message_of([&] { Safetensors::open_model(folder.path() + "/none"); }),
           folder.path() +
               "/none: has neither model.safetensors nor model.safetensors.index.json (No such file or "
               "directory)");
  std::filesystem::create_directory(folder.file("model.safetensors"));
  CHECK_EQ(message(), folder.file("model.safetensors") + ": is not a regular file");
  CHECK_EQ(message_of([&] { Safetensors::open_file(folder.file("none.safetensors")); }),
           folder.file("none.safetensors") + ": cannot be opened: No such file or directory");
}

TEST_CASE("safetensors: the digest follows every byte") {
  const Folder folder;
  const auto digest = [&](const std::string& data) {
    folder.write("x.safetensors", file_of(two().dump(), data));
    return Safetensors::open_file(folder.file("x.safetensors")).digest();
  };
  std::string data = data_of_two();
  const std::string first = digest(data);
  CHECK_EQ(first.size(), 32);
  CHECK_EQ(digest(data), first);
  data.back() ^= 1;
  CHECK_NE(digest(data), first);
}

}  // namespace safetensors_test
