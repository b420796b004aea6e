// The codec `exec`: a program of the user's codes the rows (lib/codec/row_program.hpp). The program is the codec's book: its file is named with
// --book, its digest is stored, and its bytes are counted as those of a book. Nothing that a file of codes says is ever run.
//
// With `block` N, blocks of N tokens are coded, and tokens short of a block wait exactly in the tail. With 0 all tokens that come together
// are a block: a document is one, unless it grows or does not fit into --memory.
//
// Streams of one document; `table` is shared by all:
//   table   u8 [bytes]              what the program learned from all rows; there only if it surveys
//   blocks  u64 [blocks][2]         tokens and bytes up to the end of each block
//   codes   u8 [bytes]              the blocks, one behind the other
//   tail    bf16|f16 [rest][H][d]   there only with `block`
#include <algorithm>

#include "lib/codec/exact_rows.hpp"
#include "lib/codec/row_program.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"

namespace kvcodec {
namespace {

constexpr std::string_view kProgramTable = "table", kProgramBlocks = "blocks", kProgramCodes = "codes";

struct ExecOptions final : Options {
  std::string arguments;
  int64_t block = 0;
  int64_t sink = 0;
  int64_t seconds = 600;

  std::vector<OptionField> fields() override {
    return {
        {"arguments", "text that the program gets as it begins, for options of its own", &arguments},
        {"block",
         "tokens that are coded together, those short of a block being kept exactly; 0: all tokens that come together, which "
         "is the whole document unless it grows or does not fit into --memory",
         &block, 0, 1 << 24},
        sink_field(sink),
        {"seconds", "an error if the program neither takes nor gives a byte for so long", &seconds, 1,
         1 << 20}};
  }
};

class ProgramSurvey final : public Survey {
 public:
  ProgramSurvey(RowProgram& program, const GroupShape& shape) : program_(program), shape_(shape) {}
  void observe(MatrixView<const float> rows) override { program_.observe(shape_, rows); }
  void finish(StreamStore& document) override {
    document.append_values<uint8_t>(kProgramTable, program_.learn(shape_));
  }

 private:
  RowProgram& program_;
  GroupShape shape_;
};

class ExecView final : public DocumentView {
 public:
  ExecView(RowProgram& program, DType storage, uint64_t block, const GroupShape& shape,
           const StreamReader& document)
      : DocumentView(shape, document), program_(program), storage_(storage), block_(block) {}

 protected:
  uint64_t take_in() override {
    blocks_ = document().rows(kProgramBlocks);
    coded_ = end_of(blocks_);
    if (block_ > 0 && coded_.tokens != checked_mul(blocks_, block_))
      throw bad_input("stream '{}': {} tokens in {} blocks of {}", kProgramBlocks, coded_.tokens, blocks_,
                      block_);
    if (coded_.bytes != document().rows(kProgramCodes))
      throw bad_input("stream '{}' has {} bytes; its blocks have {}", kProgramCodes,
                      document().rows(kProgramCodes), coded_.bytes);
    return checked_add(coded_.tokens, document().rows(kTail));
  }
  void decode_rows(uint64_t first, MatrixView<float> out) const override {
    decode_with_tail(storage_, document(), coded_.tokens, first, out,
                     [&](uint64_t at, MatrixView<float> rows) { decode_blocks(at, rows); });
  }
  Block block_of(uint64_t token) const override {
    if (token >= coded_.tokens) return {token, token + 1};
    const uint64_t block = block_with(token);
    if (block_ > 0) return {block * block_, (block + 1) * block_};
    return {end_of(block).tokens, end_of(block + 1).tokens};
  }

 private:
  struct End {
    uint64_t tokens = 0, bytes = 0;
  };
  /// Returns where the first `blocks` blocks end.
  End end_of(uint64_t blocks) const {
    if (blocks == 0) return {};
    const auto row = document().read<uint64_t>(kProgramBlocks, blocks - 1, 1, 2);
    return {row[0], row[1]};
  }
  /// By bisection where blocks differ: few rows are read.
  uint64_t block_with(uint64_t token) const {
    if (block_ > 0) return token / block_;
    uint64_t low = 0, high = blocks_ - 1;
    while (low < high) {
      const uint64_t middle = low + (high - low) / 2;
      if (end_of(middle + 1).tokens <= token)
        low = middle + 1;
      else
        high = middle;
    }
    return low;
  }
  void decode_blocks(uint64_t first, MatrixView<float> out) const {
    const auto table = document().read<uint8_t>(kProgramTable, 0, document().rows(kProgramTable), 1);
    const uint64_t end = first + out.rows();
    uint64_t at = first;
    for (uint64_t block = block_with(first); at < end; ++block) {
      const End begin = end_of(block), stop = end_of(block + 1);
      if (begin.tokens > at || stop.tokens <= at || stop.tokens > coded_.tokens || stop.bytes < begin.bytes ||
          (block_ > 0 && (begin.tokens != block * block_ || stop.tokens != begin.tokens + block_)))
        throw bad_input("stream '{}', row {}: ends do not rise", kProgramBlocks, block);
      const auto bytes = document().read<uint8_t>(kProgramCodes, begin.bytes, stop.bytes - begin.bytes, 1);
      Matrix<float> rows(stop.tokens - begin.tokens, out.cols());
      with_context(fmt::format("block {}", block),
                   [&] { program_.decode(shape(), table, begin.tokens, bytes, rows); });
      for (; at < std::min(end, stop.tokens); ++at)
        std::ranges::copy(rows.row(at - begin.tokens), out.row(at - first).begin());
    }
  }

  RowProgram& program_;
  DType storage_;
  uint64_t block_;  // tokens of each; 0: any number
  uint64_t blocks_ = 0;
  End coded_;  // of all of them
};

class ExecCodec final : public Codec {
 public:
  ExecCodec(const ExecOptions& options, const CodecContext& context)
      : options_(options),
        storage_(context.storage),
        program_(context.book->program(options.arguments, options.seconds)) {}

  Record parameters() const override { return record_of(options_); }
  std::vector<StreamSpec> streams(const GroupShape& shape) const override {
    return {{.name = std::string(kProgramTable),
             .type = DType::u8,
             .row_shape = {},
             .category = Category::tables,
             .shared = true},
            {std::string(kProgramBlocks), DType::u64, {2}, Category::offsets},
            {std::string(kProgramCodes), DType::u8, {}, Category::payload},
            exact_stream(kTail, shape, storage_)};
  }
  SurveyScope survey_scope(const GroupShape&) const override {
    return program_->surveys() ? SurveyScope::file : SurveyScope::none;
  }
  std::unique_ptr<Survey> survey(const GroupShape& shape) const override {
    return std::make_unique<ProgramSurvey>(*program_, shape);
  }

  void append(const GroupShape& shape, MatrixView<const float> rows, StreamStore& document) const override {
    check_width(shape, rows.cols());
    if (rows.rows() == 0) return;
    const uint64_t coded = open(shape, document)->tokens() - document.rows(kTail),
                   waiting = document.rows(kTail) + rows.rows(),
                   block = static_cast<uint64_t>(options_.block);
    append_to_tail(to_storage(storage_, rows), rows.cols(), block == 0 ? waiting : waiting - waiting % block,
                   document,
                   [&](std::span<const uint16_t> halves) { encode(shape, halves, coded, document); });
  }

 protected:
  ViewPtr view_of(const GroupShape& shape, const StreamReader& document) const override {
    return std::make_unique<ExecView>(*program_, storage_, as_size(options_.block), shape, document);
  }

 private:
  /// halves: the rows of tokens from `first` on, whole blocks.
  void encode(const GroupShape& shape, std::span<const uint16_t> halves, uint64_t first,
              StreamStore& document) const {
    const auto table = document.read<uint8_t>(kProgramTable, 0, document.rows(kProgramTable), 1);
    const uint64_t tokens = halves.size() / std::max<size_t>(shape.width(), 1),
                   block = options_.block == 0 ? tokens : static_cast<uint64_t>(options_.block);
    Matrix<float> rows(block, shape.width());
    for (uint64_t at = 0; at < tokens; at += block) {
      widen(storage_, halves.subspan(at * shape.width(), rows.size()), {rows.data(), rows.size()});
      const auto bytes = program_->encode(shape, table, first + at, rows);
      document.append_values<uint8_t>(kProgramCodes, bytes);
      document.append_values<uint64_t>(kProgramBlocks,
                                       std::array{first + at + block, document.rows(kProgramCodes)});
    }
  }

  ExecOptions options_;
  DType storage_;
  std::unique_ptr<RowProgram> program_;
};

std::unique_ptr<Codec> make_exec(const Options& options, const CodecContext& context) {
  if (!context.book) throw usage_error("codec exec needs a program: give it with --book");
  if (!context.book->program)
    throw usage_error("a program that lies in a file is never run: name the program itself with --book");
  return make_behind_sink<ExecOptions, ExecCodec>(options, context);
}

}  // namespace

CodecEntry exec_codec() {
  return {.name = "exec",
          .summary = "a program of your own, which --book names, codes the values; see kvcodec-exec(7)",
          .capabilities = {.needs_book = true},
          .book_type = "program",
          .make_options = [] { return std::make_unique<ExecOptions>(); },
          .make = make_exec,
          .dial = {.why_not = "its program alone knows what sets its rate"},
          .place = 90};
}

}  // namespace kvcodec
