// Documents of the codec `kvcomp`, opened: decoding, and products with symbols that were never turned into
// floats.
#pragma once

#include <memory>

#include "lib/codec/document_view.hpp"
#include "lib/core/dtype.hpp"
#include "lib/engine/engine.hpp"
#include "lib/kvcomp/block_engine.hpp"
#include "lib/kvcomp/codec/options.hpp"

namespace kvcodec::kvcomp {

/// As Codec::view_of. engine: may be nullptr.
std::unique_ptr<DocumentView> make_view(const KvcompOptions& options, const GroupShape& shape, DType storage,
                                        Engine* engine, const StreamReader& document);

}  // namespace kvcodec::kvcomp
