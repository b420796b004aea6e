// The options of kvcodec encode, including those of its codecs.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/codecs/codec_spec.hpp"
#include "cli/frame/command_entry.hpp"
#include "cli/frame/resume.hpp"
#include "cli/search/goal.hpp"
#include "lib/codec/book.hpp"
#include "lib/codec/registry.hpp"
#include "lib/core/dtype.hpp"

namespace kvcodec::cli {

/// The word for --codec that leaves the choice to kvcodec.
inline constexpr std::string_view kAuto = "auto";

struct EncodeOptions final : CommandOptions {
  std::string input, codec, book, weights, append;
  std::optional<DType> storage;
  std::optional<RopeChoice> rope;
  Preset preset = Preset::best;
  bool embed_book = false, verify = false;
  bool pack = true;  ///< lossless, and takes hardly any time
  GoalOptions goal;
  ShardOption shard;
  ResumeOptions resume;

  std::vector<OptionField> fields() override;
};

/// The codec that --codec names, and its options, bound to the command line. Both are null if it names none.
struct NamedCodec {
  const CodecEntry* entry = nullptr;
  std::unique_ptr<Options> options;
};

/// Declares all options of the command, including those of the codec that the command line names.
NamedCodec declare_encode(Command& command, EncodeOptions& options);

/// Sets the options after the colon in the value of --codec: those of the codec, book, weights, rope, preset and goals.
void take_word(const Command& command, const NamedCodec& codec, EncodeOptions& options);

/// Throws Error(usage) for options that exclude each other or lack another.
void check_combination(const Command& command, const EncodeOptions& options);

}  // namespace kvcodec::cli
