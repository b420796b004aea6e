// What the codec `selfindex` learns of a document's prefill before it codes it.
#pragma once

#include <memory>

#include "lib/codec/codec.hpp"
#include "lib/engine/engine.hpp"
#include "lib/selfindex/codec/options.hpp"
#include "lib/selfindex/sign_engine.hpp"

namespace kvcodec::selfindex {

/// engine: or nullptr.
std::unique_ptr<Survey> make_survey(const SelfIndexOptions& options, const Form& form, Engine* engine,
                                    Side side);

}  // namespace kvcodec::selfindex
