// tokenizer.json: any bytes are refused or make a tokenizer, which then encodes any bytes to ids that it can
// decode, the same ones each time. Input: the file, a zero byte, the text.
#include <algorithm>
#include <string_view>

#include "formats/models/tokenizer_json.hpp"
#include "test/fuzz/fuzz.hpp"

using namespace kvcodec;

KVCODEC_FUZZ_TARGET(tokenizer) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(input.find('\0'), size);
  constexpr size_t kLongestText = 4096;
  const std::string_view text = end == size ? input : input.substr(end + 1);
  fuzz::expect_refusal_or_success([&] {
    const Tokenizer tokenizer(parse_tokenizer_json(input.substr(0, end), "input"));
    const auto ids = tokenizer.encode(text.substr(0, kLongestText), true);
    for (const uint32_t id : ids) {
      fuzz::require(id < tokenizer.vocabulary_size());
      fuzz::require(tokenizer.token_of(id).has_value());
    }
    fuzz::require(tokenizer.encode(text.substr(0, kLongestText), true) == ids);
    tokenizer.decode(ids);
    tokenizer.decode(ids, true);
  });
  return 0;
}
