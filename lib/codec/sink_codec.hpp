// First tokens kept exactly, for any codec. Most attention of many heads lies on a text's first token ("attention
// sink": Xiao et al., "Efficient Streaming Language Models with Attention Sinks", 2024), and its keys and values are
// unlike all others: an error there costs more than anywhere else. So a stream of its own holds the first
// tokens in 16 bits. In place of each of them the inner codec gets a copy of the first token behind them: its
// blocks then begin and end where they would without a sink, and all later tokens keep their indices. Until
// that token comes, the inner codec gets nothing.
//   sink  bf16|f16 [min(T, sink)][layers][heads][d]
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "lib/codec/codec.hpp"
#include "lib/core/options.hpp"
#include "lib/core/record.hpp"

namespace kvcodec {

/// The name of the stream of first tokens, and of the option and parameter that gives their number.
inline constexpr std::string_view kSink = "sink";

/// The option `sink` of a codec that leaves its first tokens to keep_first_tokens(); its parameters() name
/// it.
inline OptionField sink_field(int64_t& sink) {
  return {.name = std::string(kSink),
          .help = "first tokens of a document kept exactly",
          .target = &sink,
          .min = 0,
          .max = 1 << 24};
}

/// The value of that option that pays most: one token takes a small fraction of a document's bits, and its errors would
/// cost a model more than those of all others together.
inline constexpr int64_t kBestSink = 1;

/// A codec that keeps so many tokens, in that 16-bit type, and stores what `inner` makes of the others, or, with 0, inner
/// itself. Parameters are those of inner, which has no stream of that name and no index.
std::unique_ptr<Codec> keep_first_tokens(std::unique_ptr<Codec> inner, int64_t sink, DType storage);

/// The stream of first tokens, of codes that have it.
StreamSpec sink_stream(const GroupShape& shape, DType storage);

/// The number of first tokens kept, by the parameters of codes. Throws Error(bad_input) for what is no number of tokens.
int64_t sink_in(const Record& parameters);

/// Copies the first tokens of a document from codes to codes, both with the same stream of them.
void copy_first_tokens(const StreamSpec& stream, const StreamReader& document, StreamStore& out);

}  // namespace kvcodec
