// Readers of HDF5 files: a sample file (hdf5_samples.hpp) with some bytes changed is refused, or read without a crash. Mostly its
// checksums are made right again, so that the change gets past them; where they are not, a file that has digests is refused or
// says what it said before.
//
// Input: the number of the sample; a byte of flags (3: not mended; 4: codes are also changed in place); edits of four bytes:
// where, an offset (2), the new byte. `where` is the number of a block with a checksum, from whose begin the offset counts;
// from 224 on the offset counts in the whole file.
//
// The program lets a child read each file first (formats/hdf5/probe.cpp), and so does this target: a crash of HDF5 in the child is
// a refusal, the same in the parent is a finding.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include <sys/mman.h>
#include <unistd.h>

#include "formats/cache/document_copy.hpp"
#include "formats/cache/protection.hpp"
#include "formats/models/key_rope.hpp"
#include "lib/codec/registry.hpp"
#include "lib/core/parallel.hpp"
#include "test/fuzz/child_options.hpp"
#include "test/fuzz/hdf5_samples.hpp"

using namespace kvcodec;

namespace {

constexpr size_t kMaxEdits = 32;
constexpr uint8_t kWholeFile = 224;

const std::vector<fuzz::Hdf5Sample>& samples() {
  static const std::vector<fuzz::Hdf5Sample> made = [] {
    set_num_threads(1);  // a child has one thread
    return fuzz::make_hdf5_samples();
  }();
  return made;
}

void change(std::string& bytes, const fuzz::Hdf5Sample& sample, fuzz::Bytes& input) {
  for (size_t edit = 0; edit < kMaxEdits && !input.rest().empty(); ++edit) {
    const uint8_t where = input.byte();
    const uint64_t offset = input.below(1 << 16);
    const auto value = static_cast<char>(input.byte());
    if (where >= kWholeFile || sample.blocks.empty()) {
      bytes[(uint64_t{where % 32u} << 16 | offset) % bytes.size()] = value;
    } else {
      const test::Hdf5Block& block = sample.blocks[where % sample.blocks.size()];
      bytes[block.at + offset % block.size] = value;
    }
  }
}

/// The codec of a codes file; nullptr for those with a book and for layers of several shapes.
std::unique_ptr<Codec> codec_of(const CodesReader& codes) {
  const CodesInfo& info = codes.info();
  const CodecEntry& entry = find_codec(info.codec);
  const ModelInfo& model = info.model;
  if (entry.capabilities.needs_book) return nullptr;
  const CodecContext context{.num_layers = model.num_layers,
                             .heads = model.num_kv_heads,
                             .head_dim = model.head_dim,
                             .layer_shapes = model.layer_shapes,
                             .query_heads = model.num_q_heads,
                             .storage = info.storage,
                             .rope = key_rope_of(model)};
  auto codec = codec_from_record(entry, info.parameters, context);
  codes.check_streams(*codec);
  return codec;
}

/// The streams that `decode` reads.
void decode_all(const std::string& name) {
  const CodesReader codes(name);
  const CodesInfo& info = codes.info();
  const auto codec = codec_of(codes);
  if (!codec) return;
  for (const int group : info.groups)
    for (const Side side : info.sides(group))
      for (size_t document = 0; document < info.documents.count(); ++document)
        fuzz::expect_refusal_or_success([&] {
          const GroupShape shape = info.shape(group, side);
          const auto streams = codes.document(side, group, document);
          const auto view = codec->open(shape, *streams);
          Matrix<float> rows(view->tokens(), shape.width());
          view->decode(0, rows);
        });
}

bool surveys(const Codec& codec, const CodesInfo& info) {
  return std::ranges::any_of(info.groups, [&](int group) {
    return std::ranges::any_of(info.sides(group), [&](Side side) {
      return codec.survey_scope(info.shape(group, side)) != SurveyScope::none;
    });
  });
}

/// Adds three tokens to a document, like `encode --append` for the file itself.
void append_in_place(const std::string& bytes) {
  static const test::Folder folder;
  static uint64_t number = 0;
  const std::string path = folder / std::to_string(number++);
  std::ofstream(path, std::ios::binary) << bytes;
  try {
    const HeldFile held(path, [] {});
    const CodesReader base(path);
    const auto codec = codec_of(base);
    const auto positions = test::counting(0, 3);
    if (codec && !surveys(*codec, base.info()) && CodesWriter::can_change_in_place(base, positions)) {
      CodesInfo info = base.info();
      info.documents.add("more", 3);
      OutputFile output(path, held);
      const std::vector<uint32_t> ids(base.has_tokens() ? 3 : 0, 7);
      CodesWriter writer(output, base, info, *codec, {ids, positions});
      for (const int group : info.groups)
        for (const Side side : info.sides(group)) {
          const GroupShape shape = info.shape(group, side);
          codec->append(shape, test::random_rows(3, shape.width(), 1),
                        writer.document(side, group, info.documents.count() - 1));
        }
      writer.finish({"t", {}});
      output.commit();
    }
  } catch (const Error&) {  // of any kind: what cannot be written has failed
  }
  std::filesystem::remove(path);
  std::filesystem::remove(path + ".journal");
}

/// HDF5 closes remnants of a refused file when the program ends, and may crash then.
void require_nothing_open() {
  fuzz::require(H5Fget_obj_count(static_cast<hid_t>(H5F_OBJ_ALL), H5F_OBJ_ALL) == 0);
}

}  // namespace

KVCODEC_FUZZ_TARGET(hdf5) {
  fuzz::Bytes input(data, size);
  const fuzz::Hdf5Sample& sample = samples()[input.byte() % samples().size()];
  const uint8_t flags = input.byte();
  const bool mended = flags % 4 != 3;
  std::string bytes = sample.bytes;
  change(bytes, sample, input);
  if (mended) fuzz::mend(sample, bytes);

  const int file = ::memfd_create("hdf5", MFD_CLOEXEC);
  fuzz::require(file >= 0 && ::write(file, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  const std::string name = "/proc/self/fd/" + std::to_string(file);
  fuzz::expect_refusal_or_success([&] {
    const std::string content = test::everything_in(name);
    fuzz::require(mended || !sample.guarded || content == sample.content);
  });
  fuzz::expect_refusal_or_success([&] { protection_of(name); });
  fuzz::expect_refusal_or_success([&] { find_damage(name, [](uint64_t, uint64_t) {}); });
  fuzz::expect_refusal_or_success([&] { list_documents(name); });
  fuzz::expect_refusal_or_success([&] { decode_all(name); });
  ::close(file);
  if ((flags & 4) != 0 && !sample.parts.empty()) append_in_place(bytes);
  require_nothing_open();
  return 0;
}
