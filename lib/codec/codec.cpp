#include "lib/codec/codec.hpp"

#include "lib/codec/rope_codec.hpp"
#include "lib/core/error.hpp"

namespace kvcodec {

std::unique_ptr<Survey> Codec::survey(const GroupShape&) const { throw failed("this codec surveys nothing"); }

namespace {

/// What a record says besides options is what the codec has from its book; it must be the same.
void check_facts(const Codec& codec, Options& options, const Record& parameters) {
  const Record chosen = to_record(options), wanted = codec.parameters();
  for (const auto& [name, value] : parameters.items()) {
    const Scalar* fact = chosen.find(name) ? nullptr : wanted.find(name);
    if (fact && *fact != value)
      throw bad_input("{} is {}; by the book it is {}", name, to_text(value), to_text(*fact));
  }
}

}  // namespace

std::unique_ptr<Codec> codec_from_record(const CodecEntry& entry, const Record& parameters,
                                         const CodecContext& context) {
  const std::unique_ptr<Options> options = entry.make_options();
  try {
    from_record(parameters, *options);
    std::unique_ptr<Codec> codec = make_codec(entry, *options, context, rope_in(parameters));
    check_facts(*codec, *options, parameters);
    return codec;
  } catch (const Error& error) {
    // The parameters come from a file here: what would be the user's mistake on the command line is the
    // file's.
    const ErrorKind kind = error.kind() == ErrorKind::usage ? ErrorKind::bad_input : error.kind();
    throw Error(kind, fmt::format("parameters of codec '{}': {}", entry.name, error.what()));
  }
}

}  // namespace kvcodec
