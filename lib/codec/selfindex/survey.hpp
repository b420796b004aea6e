// What the codec `selfindex` learns of a document's prefill before it codes it.
#pragma once

#include <memory>

#include "lib/codec/codec.hpp"
#include "lib/codec/selfindex/options.hpp"
#include "lib/engine/engine.hpp"

namespace kvcodec::selfindex {

/// engine: or nullptr.
std::unique_ptr<Survey> make_survey(const SelfIndexOptions& options, const Form& form, Engine* engine,
                                    Side side);

}  // namespace kvcodec::selfindex
