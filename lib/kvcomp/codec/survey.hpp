// What the codec `kvcomp` learns of a file before it codes it: the book of the symbols, and with
// max-logit-error the limits of the keys' errors.
#pragma once

#include <memory>

#include "lib/codec/codec.hpp"
#include "lib/kvcomp/codec/options.hpp"
#include "lib/kvcomp/codec/quantizer.hpp"

namespace kvcodec::kvcomp {

std::unique_ptr<Survey> make_survey(Quantizer quantizer, const KvcompOptions& options);

}  // namespace kvcodec::kvcomp
